"""The target of a request line: path, raw path and query."""

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
