"""Takes the elements of `requests` out of a long JSON object as it comes, without holding more than one of them."""

import re
from collections.abc import Iterator
from typing import Final, cast

import orjson

_OUTSIDE: Final = re.compile(rb'["{}\[\]]')
_IN_TEXT: Final = re.compile(rb'["\\]')
_BEGINS: Final = re.compile(rb'"requests"\s*:\s*$')
_ELEMENT_DEPTH: Final = 2
"""Brackets that are open around an element."""


class ArrayRefused(ValueError):
    """The document isn't `{"requests": [{…}, …]}`. The text is for the client."""


class RequestArray:
    """The elements of one document."""

    def __init__(self, longest: int) -> None:
        """`longest`: most bytes of an element, and of everything outside of the elements."""
        self._longest: Final = longest
        self._outside = bytearray()
        """The document with a 0 in the place of each element."""
        self._element: list[bytes] = []
        self._size = 0
        self._depth = 0
        self._in_array = False
        self._in_element = False
        self._in_text = False
        self._escaped = False
        self.count = 0

    def split_bytes(self, data: bytes) -> Iterator[bytes]:
        """The elements that are complete now. Raises ArrayRefused."""
        at = kept = 0
        if self._escaped and data:
            self._escaped = False
            at = 1
        while found := (_IN_TEXT if self._in_text else _OUTSIDE).search(data, at):
            mark, at = found[0], found.end()
            if self._in_text:
                if mark == b"\\":
                    at += 1
                    self._escaped = at > len(data)
                else:
                    self._in_text = False
            elif mark == b'"':
                self._in_text = True
            elif mark in b"{[":
                if self._in_array and not self._in_element and self._depth == _ELEMENT_DEPTH and mark == b"{":
                    self._keep(data[kept : at - 1])
                    kept = at - 1
                    self._in_element = True
                self._depth += 1
                if self._depth == _ELEMENT_DEPTH and mark == b"[" and not self._in_array:
                    self._keep(data[kept:at])
                    kept = at
                    self._in_array = _BEGINS.search(self._outside, 0, len(self._outside) - 1) is not None
            else:
                self._depth -= 1
                if self._in_element and self._depth == _ELEMENT_DEPTH:
                    self._keep(data[kept:at])
                    kept = at
                    self._in_element = False
                    self._outside += b"0"
                    self.count += 1
                    element, self._element, self._size = b"".join(self._element), [], 0
                    yield element
                elif self._in_array and self._depth < _ELEMENT_DEPTH:
                    self._in_array = False
        self._keep(data[kept:])

    def check_end(self) -> None:
        """The document is complete. Raises ArrayRefused."""
        try:
            document = orjson.loads(bytes(self._outside))
        except ValueError:
            raise ArrayRefused("The body isn't valid JSON.") from None
        requests = cast("dict[str, object]", document).get("requests") if isinstance(document, dict) else None
        if not isinstance(requests, list):
            raise ArrayRefused("requests: a list of requests is required.")
        if len(cast("list[object]", requests)) != self.count:
            raise ArrayRefused("requests: each element must be an object.")

    def _keep(self, piece: bytes) -> None:
        if self._in_element:
            self._element.append(piece)
            self._size += len(piece)
            if self._size > self._longest:
                raise ArrayRefused(f"requests.{self.count}: the request has more than {self._longest} bytes.")
        else:
            self._outside += piece
            if len(self._outside) > self._longest:
                raise ArrayRefused("The body has too much beside its requests.")
