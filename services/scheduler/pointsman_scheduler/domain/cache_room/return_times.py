"""When a session comes back with its next turn, learnt from earlier turns; and how long its cached prefix is worth its
place.

A prefix of C tokens that is kept for t seconds takes C t of an engine's cache, which holds M tokens. Computing it again
takes C c seconds of the whole engine. So a kept prefix pays once

    (chance that it is asked for within t) V > (mean time until it is asked for, t at most),    V = M c

and C drops out: all prefixes of an engine are worth their place for the same time.

A session that hasn't come back yet tells something, too: it outlasted each bin that is over. So the share of a bin is
the chance to come back in it after outlasting those before, of returned and of awaited turns alike (Kaplan and Meier,
1958). Without them, prompts that never come back would be kept for the ten minutes until their sessions count as over.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

EDGES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
"""Ends of the bins of times; a session that hasn't come back after the last one counts as over."""
_PUBLISHED: Final = (0.20, 0.15, 0.19, 0.11, 0.09, 0.07, 0.06, 0.05, 0.025, 0.02, 0.015, 0.02)
"""Shares of turns in each bin, and beyond the last one, before anything is learnt: quartiles and percentiles of 783,000
gaps between turns of coding agents (agentic-kvc, traces of GLM-5.1: p25 0.69 s, p50 1.6 s, p75 8.6 s, p90 44 s)."""
_PRIOR_WEIGHT: Final = 50.0
_FLOW_WEIGHT: Final = 20.0
"""Turns after which a flow's own times count as much as those of the pool."""
_WINDOW: Final = 4000.0
"""Turns that count; earlier ones fade."""
FLOWS: Final = 1024
"""Flows whose times are kept apart; the least recently used one is forgotten."""


class _Times:
    """Turns by the time until the next one."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0.0] * len(_PUBLISHED)
        self.total = 0.0

    def count_turn(self, bin_: int) -> None:
        self.counts[bin_] += 1.0
        self.total += 1.0
        if self.total > _WINDOW:
            self.counts = [0.5 * count for count in self.counts]
            self.total *= 0.5


class ReturnTimes:
    """Times of one pool, and of each flow: requests of one tenant or agent."""

    def __init__(self) -> None:
        self._pool: Final = _Times()
        self._flows: Final[OrderedDict[str, _Times]] = OrderedDict()
        self._outlasted: Final[dict[str, list[int]]] = {}
        """Turns whose next one is awaited and has outlasted each bin, by flow; of the whole pool without a name."""

    def learn_gap(self, flow: str, gap_s: float) -> None:
        """A session's next turn came `gap_s` seconds after the end of its last one; infinite when none came."""
        bin_ = next((place for place, edge in enumerate(EDGES_S) if gap_s <= edge), len(EDGES_S))
        self._pool.count_turn(bin_)
        if not flow:
            return
        times = self._flows.get(flow)
        if times is None:
            times = self._flows[flow] = _Times()
            if len(self._flows) > FLOWS:
                self._flows.popitem(last=False)
        self._flows.move_to_end(flow)
        times.count_turn(bin_)

    def note_outlasted(self, flow: str, place: int) -> None:
        """A session hasn't come back by the end of a bin."""
        for name in _names(flow):
            self._outlasted.setdefault(name, [0] * len(EDGES_S))[place] += 1

    def forget_awaited(self, flow: str, bins: int) -> None:
        """A turn that outlasted the first `bins` bins isn't awaited any more."""
        for name in _names(flow) if bins else ():
            outlasted = self._outlasted[name]
            for place in range(bins):
                outlasted[place] -= 1
            if not any(outlasted):
                del self._outlasted[name]

    def shares_of(self, flow: str) -> list[float]:
        """The share of turns in each bin, and beyond the last one: the flow's own, as far as it is known."""
        shares = _shares(self._pool, self._outlasted.get(""), _PUBLISHED, _PRIOR_WEIGHT)
        own, outlasted = self._flows.get(flow), self._outlasted.get(flow) if flow else None
        if own is None and outlasted is None:
            return shares
        return _shares(own or _Times(), outlasted, shares, _FLOW_WEIGHT)

    def find_half_back_s(self, flow: str) -> float | None:
        """The end of the bin by which half of the sessions have come back; None where fewer than half do."""
        back = 0.0
        for share, edge in zip(self.shares_of(flow), EDGES_S, strict=False):
            back += share
            if back >= 0.5:
                return edge
        return None

    def worth_keeping_s(self, flow: str, value_s: float) -> float:
        """How long a prefix is worth its place from the end of a turn on, in seconds: 0 when it never is. `value_s`:
        the time that the engine takes to compute as many tokens as its cache holds."""
        left, gain, best, until, start = 1.0, 0.0, 0.0, 0.0, 0.0
        for share, edge in zip(self.shares_of(flow), EDGES_S, strict=False):
            # Those that come back in this bin do so in its middle.
            gain += share * value_s - (left - 0.5 * share) * (edge - start)
            left -= share
            start = edge
            if gain > best:
                best, until = gain, edge
        return until


def _names(flow: str) -> tuple[str, ...]:
    """The pool's name and the flow's, in one order in each process."""
    return ("", flow) if flow else ("",)


def _shares(times: _Times, outlasted: Sequence[int] | None, prior: Sequence[float], weight: float) -> list[float]:
    """The share of turns in each bin, and beyond the last one. `prior`: the shares that count as much as `weight`
    turns."""
    shares: list[float] = []
    left, returned, expected = 1.0, times.total, 1.0
    for place, before in enumerate(prior[:-1]):
        count = times.counts[place]
        awaited = 0 if outlasted is None else outlasted[place]
        chance = (count + weight * before) / (returned + awaited + weight * expected)
        shares.append(left * chance)
        left -= shares[-1]
        returned -= count
        expected -= before
    return [*shares, max(0.0, left)]
