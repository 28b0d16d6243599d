"""Token ids that the gateway asks an engine for, and keeps from a client that didn't."""

from collections.abc import Collection
from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.token_ids import FIELD, without_ids
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.reply import Decision
from pointsman_edge.sending.unasked_usage import Passing, Rewriting
from pointsman_edge.taking_in.bodies import HeldBody

_ASKS: Final = (BodyEdit(field=FIELD, value=True, unasked=True),)
_IN_BODY: Final = b'"return_token_ids"'
_KIND: Final = "vllm"


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
    """Drops token ids, then makes the changes of `then`. A document that passes in parts keeps them."""

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
        return None if self._then is None else self._then.in_pieces()
