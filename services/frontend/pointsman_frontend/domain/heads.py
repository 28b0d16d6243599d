"""Heads of messages: the target of a client's request, the head of a request to an engine, and the headers of its
answer that reach the client."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from operator import itemgetter
from typing import Final
from urllib.parse import unquote

import httptools

from pointsman_apis.paths import Route, route_of
from pointsman_edge.taking_in.request_headers import HOP_BY_HOP, internal

_NAME: Final = itemgetter(0)
_LINE: Final = b"%b: %b\r\n".__mod__
_OURS: Final = frozenset({b"content-length", b"date", b"server", b"x-request-id", b"request-id"})
"""Written by the edge."""
_REMEMBERED: Final = 256
_SHORT: Final = 128
"""Bytes; longer targets aren't kept."""
_KEPT: Final = 1024
_LEVEL: Final = b"x-pointsman-level"
_ENDPOINT: Final = b"x-pointsman-endpoint"

_seen: dict[bytes, "RequestTarget"] = {}


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """One request target."""

    path: str
    """Without escapes."""
    raw_path: bytes
    route: Route | None
    """The meaning of the path; None when there is none."""
    sent: bytes
    """Path and query for an engine; empty without a route."""
    query: bytes
    """As the client sent it, without a question mark."""
    escaped: bool
    """The path has escapes."""


def target_of(url: bytes) -> RequestTarget:
    """The parts of a target. Raises httptools.HttpParserInvalidURLError. Short ones are parsed once each."""
    return _seen.get(url) or _parsed(url)


def _parsed(url: bytes) -> RequestTarget:
    parsed = httptools.parse_url(url)
    raw_path: bytes = parsed.path
    path = raw_path.decode("ascii")
    escaped = "%" in path
    if escaped:
        path = unquote(path)
    route, sent = route_of(path), b""
    if route is not None:
        sent = route.path.encode("ascii")
        if route.api.passed and parsed.query:
            # The APIs that are read know no query.
            sent += b"?" + parsed.query
    target = RequestTarget(
        path=path, raw_path=raw_path, route=route, sent=sent, query=parsed.query or b"", escaped=escaped
    )
    if len(url) <= _SHORT:
        if len(_seen) >= _KEPT:
            # Targets come from clients; a flood of new ones must not stay.
            _seen.clear()
        _seen[url] = target
    return target


def head_without_offer(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head without its `upgrade` header, as it would stand on the wire. Names of headers are lower-case."""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode("ascii"))]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"%b\r\n\r\n" % b"\r\n".join(lines)


def request_head(
    *,
    method: bytes,
    target: bytes,
    host: bytes,
    length: int,
    headers: Sequence[tuple[bytes, bytes]],
    request_id: str,
    traceparent: str | None,
) -> bytes:
    """Request line and headers of a request with a body of `length` bytes."""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b\r\n" % (
        method,
        target,
        host,
        length,
        request_id.encode("ascii"),
        b"".join(map(_LINE, headers)),
        b"" if traceparent is None else b"traceparent: %b\r\n" % traceparent.encode("ascii"),
    )


class ResponseHeaderRules:
    """The rules. Names are classified once each list of them, since an engine's answers differ in values alone."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[list[bool], int | None, int | None]] = {}
        """By names: which of them pass, and which of them is the content type, and the content encoding."""

    def pass_on(self, headers: list[tuple[bytes, bytes]]) -> tuple[list[tuple[bytes, bytes]], bytes, bytes]:
        """The (lower-case) headers for the client, in order, the content type, and the content encoding; both empty
        where the answer has none."""
        names = tuple(map(_NAME, headers))
        passes, kind_at, encoding_at = self._known.get(names) or self._learn(names)
        kind = b"" if kind_at is None else headers[kind_at][1]
        encoding = b"" if encoding_at is None else headers[encoding_at][1].strip().lower()
        return list(compress(headers, passes)), kind, encoding

    def _learn(self, names: tuple[bytes, ...]) -> tuple[list[bool], int | None, int | None]:
        passes = [name not in HOP_BY_HOP and name not in _OURS and not internal(name) for name in names]
        # Of several, the last one counts.
        kind_at = max((at for at, name in enumerate(names) if name == b"content-type"), default=None)
        encoding_at = max((at for at, name in enumerate(names) if name == b"content-encoding"), default=None)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[names] = learned = passes, kind_at, encoding_at
        return learned


@lru_cache(maxsize=1024)
def stamps(level: str, worker: str | None) -> list[tuple[bytes, bytes]]:
    """The edge's own headers of an engine's answer: the decision's level, and the worker unless None."""
    level_header = (_LEVEL, level.encode("ascii", "replace"))
    return [level_header] if worker is None else [level_header, (_ENDPOINT, worker.encode("ascii", "replace"))]
