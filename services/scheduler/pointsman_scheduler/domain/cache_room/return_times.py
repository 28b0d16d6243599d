"""When a session comes back with its next turn, learnt from earlier turns; and how long its cached prefix is worth its
place.

A prefix of C tokens that is kept for t seconds takes C t of an engine's cache, which holds M tokens. Computing it again
takes C c seconds of the whole engine. So a kept prefix pays once

    (chance that it is asked for within t) V > (mean time until it is asked for, t at most),    V = M c

and C drops out: all prefixes of an engine are worth their place for the same time.
"""

from collections import OrderedDict
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

    def shares_of(self, flow: str) -> list[float]:
        """The share of turns in each bin, and beyond the last one: the flow's own, as far as it is known."""
        pool = self._pool
        weight = pool.total + _PRIOR_WEIGHT
        shares = [
            (count + _PRIOR_WEIGHT * share) / weight for count, share in zip(pool.counts, _PUBLISHED, strict=True)
        ]
        own = self._flows.get(flow)
        if own is None:
            return shares
        weight = own.total + _FLOW_WEIGHT
        return [(count + _FLOW_WEIGHT * share) / weight for count, share in zip(own.counts, shares, strict=True)]

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
