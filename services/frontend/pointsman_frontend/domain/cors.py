"""Cross-origin requests: the headers that let a web page's script read an answer.

https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from collections.abc import Iterable
from typing import Final

from pointsman_core.config import Cors

Headers = list[tuple[bytes, bytes]]

ANY: Final = "*"
_METHODS: Final = b"GET, POST, DELETE"
_VARY: Final = (b"vary", b"origin")


def preflight(cors: Cors, method: str, headers: Iterable[tuple[bytes, bytes]]) -> Headers | None:
    """The headers that answer a preflight request; None for another request, and for an origin that isn't allowed."""
    if method != "OPTIONS":
        return None
    sent = dict(headers)
    allowed = answered(cors, sent.items())
    if len(allowed) < 2 or b"access-control-request-method" not in sent:
        return None
    asked = sent.get(b"access-control-request-headers", b"")
    return [
        *allowed,
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", b"%d" % round(cors.max_age)),
        *([(b"access-control-allow-headers", asked)] if asked else ()),
    ]


def answered(cors: Cors, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that an answer gets; those of an origin that isn't allowed say only that answers differ."""
    origin = next((value for name, value in headers if name == b"origin"), None)
    if origin is None:
        return [_VARY]
    if ANY not in cors.origins and origin.decode("latin-1") not in cors.origins:
        return [_VARY]
    return [
        _VARY,
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
    ]
