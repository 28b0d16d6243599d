"""Names of request headers: which are valid, and which only the edge may set."""

import re
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
MIRRORED: Final = "x-mirrored-by"
"""Marks a copy of a request: no gateway mirrors it again. Any client may set it, and isn't mirrored then."""
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

_CREDENTIAL: Final = re.compile(r"auth|cookie|credential|key|passw|secret|signature|token|^sig$|^code$", re.IGNORECASE)
_NO_CREDENTIALS: Final = frozenset({"idempotency-key", "prompt-cache-key"})


def is_credential(name: str) -> bool:
    """Whether a header, or a member of a query, of this name may hold a credential."""
    return name.lower() not in _NO_CREDENTIALS and _CREDENTIAL.search(name) is not None


def _passable(name: str) -> str:
    lower = name.lower().replace("_", "-")
    stem = name.removesuffix("*")
    if not stem or re.fullmatch(HEADER_NAME, stem) is None:
        raise ValueError(f"{name!r}: not a header, and not the beginning of one with a `*`")
    if is_credential(stem):
        raise ValueError(f"{name}: it may hold a client's credential, which no provider gets")
    if lower != "traceparent" and (lower in EDGES_OWN or lower.startswith("content-") or lower == "accept-encoding"):
        raise ValueError(f"{name}: the edge writes this header itself; name another one")
    return name.lower()


PassableHeader = Annotated[str, AfterValidator(_passable)]
"""A client's header that a configuration may let pass to a provider; a `*` at its end matches every ending."""


def _passable_member(name: str) -> str:
    if not name or is_credential(name):
        raise ValueError(f"{name!r}: it may hold a client's credential, which no provider gets")
    return name


PassableMember = Annotated[str, AfterValidator(_passable_member)]
"""A member of a client's query that a configuration may let pass to a provider."""
