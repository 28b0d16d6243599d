"""The worth of senders' hints about the lengths of their answers.

A hint is in units of its sender: it is multiplied by the tokens that the sender's earlier answers had for each hinted
one. A sender that always hints one token is believed to want as many as its answers have, so that a wrong hint gains
nothing, and one sender's hints say nothing about another's.
"""

from collections import OrderedDict
from typing import Final

from msgspec import Struct

LEAST_ANSWERS: Final = 8
"""Until a sender has had so many answers, its hints count for nothing."""
_LEAST_SHARE: Final = 0.125
"""No answer counts as shorter than this share of the usual one: its decode steps slow others down, however short the
sender says that it is."""
_WINDOW: Final = 200.0
"""Answers that count; earlier ones fade."""
_SENDERS: Final = 1024
"""The least recently used one is forgotten."""


class _Hinted(Struct, eq=False):
    answers: float = 0.0
    hinted: float = 0.0
    """Tokens."""
    answered: float = 0.0


class HintedLengths:
    """One pool. A sender is a flow (`RequestFacts.fairness_id`)."""

    def __init__(self) -> None:
        self._senders: Final[OrderedDict[str, _Hinted]] = OrderedDict()

    def learn_length(self, sender: str, hinted: int, answered: int) -> None:
        """An answer with a hint had this many tokens."""
        known = self._senders.get(sender)
        if known is None:
            known = self._senders[sender] = _Hinted()
            if len(self._senders) > _SENDERS:
                self._senders.popitem(last=False)
        self._senders.move_to_end(sender)
        if known.answers >= _WINDOW:
            known.answers, known.hinted, known.answered = known.answers / 2, known.hinted / 2, known.answered / 2
        known.answers += 1.0
        known.hinted += hinted
        known.answered += answered

    def believe_length(self, sender: str, hinted: int, usual: float, limit: int | None) -> int | None:
        """The longest answer to count on. `usual`: tokens of the pool's answers; `limit`: the client's own, which is
        the answer where the hint counts for nothing."""
        known = self._senders.get(sender)
        if known is None or known.answers < LEAST_ANSWERS:
            return limit
        length = max(1, round(hinted * known.answered / known.hinted), round(_LEAST_SHARE * usual))
        return length if limit is None else min(length, limit)
