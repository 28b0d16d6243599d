"""Regret of joint choices of model and engine, once their requests have ended, and weights that would have had less.

The loss of a model is what a request would have cost there, with seconds and quality at their prices (`ChoiceWorth`):

    loss = cost + seconds * second - quality * quality_price
    regret = loss of the chosen model - least loss of any

For the chosen model cost and seconds are those that came. For any other one they are those that were expected, times
the median of (came / expected) of the requests that it served. Money is in nano-dollars.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from pointsman_contracts.model_choice import ModelPoint
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled

MOST: Final = 20_000
"""Requests that are judged at most: the newest."""
LEAST: Final = 20
"""Requests that a model must have served before its expectations are corrected, and each half of those judged."""
_MOST_WRONG: Final = 10.0
"""An expectation is corrected by this factor at most."""
_STEPS: Final = 10
_BEYOND: Final = "beyond a limit"


class ChoiceOutcome(NamedTuple):
    """One request whose model was a joint choice, and that was answered."""

    points: tuple[ModelPoint, ...]
    """The models that were within all limits; the first one was chosen."""
    answer_ms: float
    """From the decision to the last token."""
    cost: int | None
    """None without a price."""


class WeightTenths(NamedTuple):
    """WeightTenths of a choice, in tenths of their sum."""

    time: int
    money: int
    quality: int


class LearntChoice(NamedTuple):
    """The comparison of the weights that decided with those that would have had the least regret."""

    judged: int
    regret: float
    """Mean regret of the requests that the weights weren't learnt from, as they were decided; in nano-dollars."""
    weights: WeightTenths
    learnt_regret: float
    """The same, as these weights would have decided."""
    moved: Mapping[tuple[str, str], int]
    """Chosen model and the one that the weights would have chosen → requests, where they differ."""
    by_model: Mapping[str, tuple[int, float]]
    """Model → requests that it served, and their mean regret."""


def read_outcomes(events: Iterable[object]) -> list[ChoiceOutcome]:
    """The newest `MOST` of the events of requests, in the order of their ends. Requests that failed, that a cascade
    escalated, or whose times weren't known show nothing."""
    decided: dict[tuple[str, str], RequestScheduled] = {}
    found: list[ChoiceOutcome] = []
    for event in events:
        if isinstance(event, RequestScheduled):
            if event.models:
                if len(decided) >= MOST:
                    del decided[next(iter(decided))]
                decided[event.edge, event.request_id] = event
        elif isinstance(event, ResponseCompleted):
            decision = decided.pop((event.source, event.request_id), None)
            outcome = None if decision is None else _outcome(decision, event)
            if outcome is not None:
                found.append(outcome)
    return found[-MOST:]


def _outcome(decision: RequestScheduled, end: ResponseCompleted) -> ChoiceOutcome | None:
    if end.outcome != "ok" or end.unused or end.target != decision.target:
        return None
    points = tuple(
        [each for each in decision.models if each.total is not None and not each.verdict.startswith(_BEYOND)]
    )
    if len(points) < 2 or points[0].verdict != "chosen" or any(not each.answer_ms for each in points):
        return None
    return ChoiceOutcome(points, end.duration_ms - end.decided_ms, end.cost_nanos)


def learn_weights(outcomes: Sequence[ChoiceOutcome], second: int, quality: int) -> LearntChoice | None:
    """The weights of least regret on every other request, judged by the rest. `second`, `quality`: prices in
    nano-dollars. None when there are fewer than twice `LEAST`."""
    teaching, judging = outcomes[::2], outcomes[1::2]
    if len(judging) < LEAST:
        return None
    factors = _factors(outcomes)
    losses = [[_losses(each, factors, second, quality) for each in half] for half in (teaching, judging)]
    grid = [WeightTenths(t, m, _STEPS - t - m) for t in range(_STEPS + 1) for m in range(_STEPS + 1 - t)]
    best = min(grid, key=lambda weights: (_regret(teaching, losses[0], weights), -min(weights)))
    moved: Counter[tuple[str, str]] = Counter()
    by_model: defaultdict[str, list[float]] = defaultdict(list)
    for each, lost in zip(judging, losses[1], strict=True):
        other = _choose(each.points, best)
        by_model[each.points[0].model].append(lost[0] - min(lost))
        if other:
            moved[each.points[0].model, each.points[other].model] += 1
    return LearntChoice(
        judged=len(judging),
        regret=sum(lost[0] - min(lost) for lost in losses[1]) / len(judging),
        weights=best,
        learnt_regret=_regret(judging, losses[1], best) / len(judging),
        moved=moved,
        by_model={model: (len(all_of), sum(all_of) / len(all_of)) for model, all_of in sorted(by_model.items())},
    )


def _regret(outcomes: Sequence[ChoiceOutcome], losses: Sequence[Sequence[float]], weights: WeightTenths) -> float:
    return sum(lost[_choose(each.points, weights)] - min(lost) for each, lost in zip(outcomes, losses, strict=True))


def _choose(points: Sequence[ModelPoint], weights: WeightTenths) -> int:
    """The position of the model that these weights choose; the chosen one where they tie."""
    waits = [_expected_ms(point) for point in points]
    fastest, cheapest = min(waits), min(point.cost for point in points)
    totals = [
        weights.time * fastest / wait
        + weights.money * (cheapest / point.cost if point.cost > 0 else 1.0)
        + weights.quality * point.quality
        for point, wait in zip(points, waits, strict=True)
    ]
    return totals.index(max(totals))


def _losses(
    outcome: ChoiceOutcome, factors: Mapping[str, tuple[float, float]], second: int, quality: int
) -> list[float]:
    found: list[float] = []
    for position, point in enumerate(outcome.points):
        time, money = factors.get(point.model, (1.0, 1.0))
        answer_ms, cost = (point.answer_ms or 0.0) * time, point.cost * money
        if not position:
            answer_ms, cost = outcome.answer_ms, cost if outcome.cost is None else float(outcome.cost)
        found.append(cost + (answer_ms + point.others_ms) / 1000.0 * second - point.quality * quality)
    return found


def _factors(outcomes: Sequence[ChoiceOutcome]) -> dict[str, tuple[float, float]]:
    """Model → how much longer its answers took, and how much more they cost, than was expected."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    costs: defaultdict[str, list[float]] = defaultdict(list)
    for each in outcomes:
        point = each.points[0]
        times[point.model].append(each.answer_ms / (point.answer_ms or each.answer_ms or 1.0))
        if each.cost is not None and point.cost > 0:
            costs[point.model].append(each.cost / point.cost)
    return {model: (_factor(times[model]), _factor(costs[model])) for model in times}


def _factor(ratios: Sequence[float]) -> float:
    return min(_MOST_WRONG, max(1.0 / _MOST_WRONG, median(ratios))) if len(ratios) >= LEAST else 1.0


def _expected_ms(point: ModelPoint) -> float:
    return max((point.answer_ms or 0.0) + point.others_ms, 1e-6)
