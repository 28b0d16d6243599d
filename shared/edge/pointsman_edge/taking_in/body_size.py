"""Whether a request may have a body, and how large it may be."""

from pointsman_core.refusal import Refusal


def check_length(length: int | None, limit: int) -> None:
    """Raise Refusal 413 for a body of this length, or one that says it has it; None: it doesn't say."""
    if length is not None and length > limit:
        raise Refusal(413, f"The body has {length} bytes; at most {limit} are taken.", code="body_too_large")


def check_presence(body: bytes, kind: str) -> None:
    """Raise Refusal 400 for no body, or for one on a path that takes none. `kind` as `Api.body`."""
    if kind == "none":
        if body:
            raise Refusal(400, "This path takes no body; leave it out.", code="unexpected_body")
    elif not body:
        raise Refusal(400, "The body is empty; a JSON object is expected.", code="empty_body")
