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
from pointsman_delay.token_pace import LEAST_SHARE, TokenPace, prompt_share
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

    __slots__ = ("begins", "itl", "longest", "may_go_at", "outlook", "sent", "speed", "step", "tokens")

    def __init__(self, outlook: Outlook, row: int, now: float, pace: TokenPace | None) -> None:
        at = outlook.base[row]
        self.outlook: Final = outlook
        self.begins: Final = max(now, at.free_at)
        self.speed: Final = at.speed
        self.step = outlook.step_ms(row)
        self.itl = math.inf if pace is None else pace.tightest
        """The shortest time between tokens that is promised there."""
        self.may_go_at: Final = now if pace is None else now + pace.owed_ms(now, self.step)
        """When the engine has caught up with the prompts that it was sent."""
        self.sent: Final = at.waiting
        self.tokens = at.waiting
        self.longest: list[tuple[float, int, Unbound]] = []
        """A heap of those that may be left out, the longest first."""

    def first_token_at(self, uncached: float) -> float:
        """When a prompt that goes after all of these is computed."""
        outlook, total = self.outlook, self.tokens + uncached
        passes = -(-total // outlook.budget)
        at = self.begins + outlook.rates.passes_ms(total, outlook.budget) * self.speed + passes * self.step
        if self.itl == math.inf:
            return at
        share = max(LEAST_SHARE, prompt_share(self.step, self.itl))
        before = outlook.rates.passes_ms(self.tokens - self.sent, outlook.budget) * self.speed / share
        own = outlook.rates.passes_ms(uncached, outlook.budget) * self.speed + self.step
        return max(at, self.may_go_at + before + own)

    def promised_to(self, each: Unbound) -> float:
        """The time between tokens that the request is promised, if an engine with no other answer would keep it."""
        itl, rates = each.request.facts.slo_itl_ms, self.outlook.rates
        if itl is None or not each.request.facts.slo_class:
            return math.inf
        alone = (rates.decode + rates.batch + rates.growth * each.prompt) * self.speed
        return math.inf if prompt_share(alone, itl) < LEAST_SHARE else itl

    def step_with(self, each: Unbound) -> float:
        """A decode step when the request has joined the batch."""
        rates = self.outlook.rates
        return (self.step or rates.decode * self.speed) + (rates.batch + rates.growth * each.prompt) * self.speed

    def has_room(self, each: Unbound) -> bool:
        """Whether the answers there and the request's keep their times between tokens beside each other. One without
        such a promise may go where promises are broken anyway."""
        itl = self.promised_to(each)
        tightest = min(self.itl, itl)
        if tightest == math.inf or prompt_share(self.step_with(each), tightest) >= LEAST_SHARE:
            return True
        return itl == math.inf and prompt_share(self.step, tightest) < LEAST_SHARE

    def plan_answer(self, each: Unbound) -> None:
        """The request is planned for this engine, in time."""
        self.itl = min(self.itl, self.promised_to(each))
        if self.itl < math.inf:
            self.step = self.step_with(each)


def place_by_slack(
    waiting: Sequence[Unbound],
    outlook: Outlook,
    now: float,
    lifts: dict[str, float],
    paces: Sequence[TokenPace | None] = (),
) -> bool:
    """Plan each waiting request, and set which ones are left out. `lifts`: as of `ClassShares`; `paces`: as of
    `PassSizeSearch.list_paces`. Returns whether the engine of any own request changed."""
    lines = [_Line(outlook, row, now, paces[row] if paces else None) for row in range(len(outlook.base))]
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
        if in_time:
            line.plan_answer(each)
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
        if cost < least and (
            not each.request.facts.is_promised
            or (at + MARGIN * (at - now) <= each.latest and lines[row].has_room(each))
        ):
            least, best = cost, row
    return (best, True) if best >= 0 else (soonest, False)
