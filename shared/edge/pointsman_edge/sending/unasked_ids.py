"""Token ids that the gateway asks an engine for, and keeps from a client that didn't."""

import re
from collections.abc import Collection
from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.token_ids import FIELD, NAME, without_ids
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.reply import Decision
from pointsman_edge.sending.unasked_usage import Passing, Rewriting
from pointsman_edge.taking_in.bodies import HeldBody

_ASKS: Final = (BodyEdit(field=FIELD, value=True, unasked=True),)
_IN_BODY: Final = b'"return_token_ids"'
_KIND: Final = "vllm"
_LIST: Final = re.compile(rb'token_ids"\s*:\s*\[')
_BRACKET: Final = re.compile(rb"[][]")
_HELD: Final = 64
"""Bytes that wait: a list may begin in them."""


def asks_for_ids(
    api: Api, decision: Decision, held: HeldBody | None, readers: Collection[str], kind: str
) -> tuple[BodyEdit, ...]:
    """The changes of a request's body by which an engine of this kind returns token ids, where a processor of its
    profile reads them; none for a client that asks itself, or for engines that don't know how. `readers`: the profiles
    with such processors."""
    if kind != _KIND or api not in (CHAT, COMPLETIONS) or held is None or held.end is None or not held.end.exact:
        return ()
    if decision.profile not in readers or decision.answers > 1 or _IN_BODY in held.current:
        return ()
    return _ASKS


class WithoutIds:
    """Drops token ids, then makes the changes of `then`."""

    __slots__ = ("_then",)

    def __init__(self, then: Rewriting | None) -> None:
        self._then = then

    def rewrite_bytes(self, data: bytes) -> bytes:
        """Whole events, or a whole document."""
        data = without_ids(data)
        return data if self._then is None else self._then.rewrite_bytes(data)

    def put_in_error(self, data: bytes) -> bytes:
        """A whole error document."""
        return data if self._then is None else self._then.put_in_error(data)

    def in_pieces(self) -> Passing | None:
        """Like `Rewriting.in_pieces`."""
        return PassingWithoutIds(None if self._then is None else self._then.in_pieces())


class PassingWithoutIds:
    """Drops the token ids of one document, wherever it is split."""

    __slots__ = ("_depth", "_held", "_then")

    def __init__(self, then: Passing | None) -> None:
        self._then = then
        self._held = b""
        self._depth = 0
        """Lists of ids that haven't ended, one in the other."""

    def rewrite_part(self, data: bytes) -> bytes:
        """Take the next bytes from the engine; returns the bytes for the client."""
        return self._passed(self._without_lists(data))

    def rest(self) -> bytes:
        """The bytes that are held, after the engine has ended the document."""
        held = self._passed(self._held)
        return held if self._then is None else held + self._then.rest()

    def _without_lists(self, data: bytes) -> bytes:
        data = without_ids(self._held + self._behind_list(data))
        begun = _LIST.search(data)
        if begun is not None:
            # The list that is left hasn't ended.
            end = begun.end()
            self._held, self._depth = b"", 1
            return data[: end - 1] + b"null" + self._without_lists(data[end:])
        cut = max(len(data) - _HELD, 0)
        name = data.rfind(NAME, max(cut - len(NAME), 0))
        if 0 <= name < cut:
            cut = name
        self._held = data[cut:]
        return data[:cut]

    def _behind_list(self, data: bytes) -> bytes:
        """The bytes behind the list that hasn't ended."""
        if not self._depth:
            return data
        for bracket in _BRACKET.finditer(data):
            self._depth += 1 if bracket[0] == b"[" else -1
            if not self._depth:
                return data[bracket.end() :]
        return b""

    def _passed(self, data: bytes) -> bytes:
        return data if self._then is None else self._then.rewrite_part(data)
