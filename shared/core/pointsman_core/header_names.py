"""Names of request headers: which are valid, and which only the edge may set."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field

HEADER_NAME: Final = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
"""A token of RFC 9110, section 5.6.2."""
HOP_BY_HOP: Final = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
"""RFC 9110 §7.6.1: they concern one connection."""
FRAMING: Final = HOP_BY_HOP | {"content-length", "expect", "host"}
"""Headers that decide where a request ends and which host it is for. Two readings of either let one request hide in
another."""
REQUEST_ID: Final = "x-request-id"
EDGES_OWN: Final = FRAMING | {REQUEST_ID, "traceparent"}
"""The edge writes these into every request that goes on."""


def settable(name: str) -> str:
    """The name, if a configuration may set a header of this name. Raises ValueError."""
    # Some servers read `content_length` as `content-length`.
    if name.lower().replace("_", "-") in EDGES_OWN:
        raise ValueError(f"{name}: the edge writes this header itself; name another one")
    return name


SettableHeader = Annotated[str, Field(pattern=HEADER_NAME), AfterValidator(settable)]
"""A parameter of this type names a header of the request that goes on."""
