"""Plans waiting requests with a service level by their slack: the time until the first token is due, less the time that
it is predicted to take.

On one machine, most jobs are done by their due dates when they go in the order of these dates, and when, each time that
one would be late, the longest of those before it and itself is left out (Moore, "An n job, one machine sequencing
algorithm for minimizing the number of late jobs", Management Science 15, 1968). Here an engine is such a machine. A
request goes to the engine where it costs least, of those that have its first token in time. Those left out go after all
others, or are refused.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Final

from pointsman_delay.outlook import Outlook
from pointsman_scheduler.domain.late_binding.plan import count_shared
from pointsman_scheduler.domain.late_binding.unbound import Unbound

MARGIN: Final = 0.05
"""A request is in time if it is so when everything takes this much longer than predicted."""
FADES_MS: Final = 60_000.0
"""The tokens that a class got count less and less; after this time, an e-th."""
MOST_LIFT: Final = 4.0
"""How much shorter a prompt counts, at most, when its class got less than its share."""


class ClassShares:
    """How much of the engines each class of service levels got lately. A class is entitled to its weight's share; while
    it has less, its prompts count as shorter, so that others are left out before them."""

    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._at = 0.0

    def count_tokens(self, each: Unbound, now: float) -> None:
        """The request goes to an engine."""
        faded = math.exp((self._at - now) / FADES_MS)
        self._at = now
        facts = each.request.facts
        self._tokens = {name: tokens * faded for name, tokens in self._tokens.items() if tokens * faded >= 1.0}
        self._tokens[facts.slo_class] = self._tokens.get(facts.slo_class, 0.0) + each.uncached
        self._weights = {name: weight for name, weight in self._weights.items() if name in self._tokens}
        self._weights[facts.slo_class] = facts.slo_weight

    def compute_lifts(self, waiting: Sequence[Unbound]) -> dict[str, float]:
        """For each class that waits: by how much its prompts count as shorter, at least 1."""
        promised = [each.request.facts for each in waiting if each.request.facts.is_promised]
        weights = self._weights | {facts.slo_class: facts.slo_weight for facts in promised}
        total, whole = sum(self._tokens.values()), sum(weights.values())
        found: dict[str, float] = {}
        for name, weight in weights.items():
            entitled = weight / whole * total
            found[name] = min(MOST_LIFT, max(1.0, entitled / max(1.0, self._tokens.get(name, 0.0)))) if total else 1.0
        return found


class _Line:
    """The prompts planned for one engine, in the order of their due times. Times are milliseconds."""

    __slots__ = ("begins", "longest", "outlook", "speed", "step", "tokens")

    def __init__(self, outlook: Outlook, row: int, now: float) -> None:
        at = outlook.base[row]
        self.outlook: Final = outlook
        self.begins: Final = max(now, at.free_at)
        self.speed: Final = at.speed
        self.step: Final = outlook.step_ms(row)
        self.tokens = at.waiting
        self.longest: list[tuple[float, int, Unbound]] = []
        """A heap of those that may be left out, the longest first."""

    def first_token_at(self, uncached: float) -> float:
        """When a prompt that goes after all of these is computed."""
        outlook, total = self.outlook, self.tokens + uncached
        passes = -(-total // outlook.budget)
        return self.begins + outlook.rates.passes_ms(total, outlook.budget) * self.speed + passes * self.step


def place_by_slack(waiting: Sequence[Unbound], outlook: Outlook, now: float, lifts: dict[str, float]) -> bool:
    """Plan each waiting request, and set which ones are left out. `lifts`: as of `ClassShares`. Returns whether the
    engine of any own request changed."""
    lines = [_Line(outlook, row, now) for row in range(len(outlook.base))]
    families: dict[int, list[Unbound]] = {}
    changed = False
    left_out: list[Unbound] = []
    for number, each in enumerate(sorted(waiting, key=_by_due)):
        count_shared(each, families)
        row, in_time = _choose_row(each, lines, outlook, now)
        changed |= row != each.row and each.reported is None
        each.row, each.left_out = row, False
        each.uncached = each.tokens_to_compute(float(each.matched[row]))
        line = lines[row]
        line.tokens += each.uncached
        outlook.add(row, each.uncached, each.prompt, before=True)
        if not each.request.facts.is_promised:
            continue
        # With a higher weight a prompt counts as shorter, too.
        facts = each.request.facts
        length = each.uncached / (facts.slo_weight * lifts.get(facts.slo_class, 1.0))
        heapq.heappush(line.longest, (-length, number, each))
        if not in_time:
            victim = heapq.heappop(line.longest)[2]
            line.tokens -= victim.uncached
            outlook.remove_planned(row, victim.uncached, victim.prompt)
            victim.left_out = True
            left_out.append(victim)
    for each in left_out:
        rows = range(len(lines)) if each.rows is None else each.rows
        each.first_token_at = min(
            [lines[row].first_token_at(each.tokens_to_compute(float(each.matched[row]))) for row in rows]
        )
    return changed


def _by_due(each: Unbound) -> tuple[float, float, float]:
    return -each.request.facts.priority, each.latest, each.since


def _choose_row(each: Unbound, lines: Sequence[_Line], outlook: Outlook, now: float) -> tuple[int, bool]:
    """The engine where the request costs least of those that have it in time, or else the soonest one; and whether it
    is in time there."""
    costs = outlook.costs(each.prompt, each.matched, each.request.longest_output, each.uses, each.rows)
    best = soonest = -1
    least = first = math.inf
    for cost, row in zip(costs, range(len(costs)) if each.rows is None else each.rows, strict=True):
        at = lines[row].first_token_at(each.tokens_to_compute(float(each.matched[row])))
        if at < first:
            first, soonest = at, row
        if cost < least and (not each.request.facts.is_promised or at + MARGIN * (at - now) <= each.latest):
            least, best = cost, row
    return (best, True) if best >= 0 else (soonest, False)
