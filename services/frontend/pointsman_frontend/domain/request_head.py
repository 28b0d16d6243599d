"""The head of a request: its target, and the whole without an offer to upgrade."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import httptools

_SHORT: Final = 128
"""Bytes; longer targets aren't kept."""
_KEPT: Final = 1024

_seen: dict[bytes, "RequestTarget"] = {}


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """One request target."""

    path: str
    """Without escapes."""
    raw_path: bytes
    query: bytes


def target_of(url: bytes) -> RequestTarget:
    """The parts of a target. Raises httptools.HttpParserInvalidURLError. Short ones are parsed once each."""
    return _seen.get(url) or _parsed(url)


def _parsed(url: bytes) -> RequestTarget:
    parsed = httptools.parse_url(url)
    raw_path: bytes = parsed.path
    path = raw_path.decode("ascii")
    target = RequestTarget(unquote(path) if "%" in path else path, raw_path, parsed.query or b"")
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
