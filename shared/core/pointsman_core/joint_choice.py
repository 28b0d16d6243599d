"""Ranks models by time, money and quality, within limits. Pure: the caller knows how long each would take."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from pointsman_contracts.model_choice import ModelChoice, ModelOption, ModelPoint
from pointsman_contracts.money import NANOS, dollars
from pointsman_core.refusal import Refusal

PREDICTED: Final = "predicted"
MEASURED: Final = "measured"
UNKNOWN_SCORE: Final = 0.5
"""Time score of a model whose time is unknown."""
_MATTERS: Final = 1e-3
"""A weight of the time from which it does more than settle ties."""
_PER_PRICE: Final = 1_000_000
"""Tokens that a price is for."""
_TRIAL, _WITHIN, _UNKNOWN, _BEYOND, _FULL, _OUT = range(6)
"""Groups of models, the best first."""


class OptionTime(NamedTuple):
    """How long one model would take, as its caller knows it."""

    first_token_ms: float | None = None
    answer_ms: float | None = None
    others_ms: float = 0.0
    time_from: str = ""
    worker: str = ""
    cached_tokens: int = 0
    """These are the fields of `ModelPoint`."""
    others_first_ms: float = 0.0
    """The part of `others_ms` before their first tokens."""
    idle: bool = False
    """Its best engine has no request: one request there shows how long it takes, and delays no other."""
    full: bool = False
    """Requests wait for admission to its pool, so nothing tells how long one more would take."""
    out: str = ""
    """Why it can't serve the request; empty when it can."""


class RankedModels(NamedTuple):
    """The models in order of preference."""

    order: tuple[int, ...]
    """Positions of the options that can serve the request, the chosen one first."""
    points: tuple[ModelPoint, ...]
    """All options, in that order; those that can't serve it come last."""


class _Judged(NamedTuple):
    group: int
    overrun: float
    """Largest quotient of a value and its limit, of those beyond it."""
    words: str


def measured(option: ModelOption) -> OptionTime:
    """The time as recent answers had it; unknown when there were none."""
    first = option.first_token_ms
    if first is None:
        return OptionTime()
    answer = None if option.token_ms is None else first + option.token_ms * option.output_tokens
    return OptionTime(first_token_ms=first, answer_ms=answer, time_from=MEASURED)


def cost_of(option: ModelOption, prompt_tokens: int, answers: int, cached_tokens: int) -> int:
    """Expected cost in nano-dollars."""
    cached = min(cached_tokens, prompt_tokens)
    exact = (prompt_tokens - cached) * option.input_price + cached * option.cached_price
    return round((exact + answers * option.output_tokens * option.output_price) / _PER_PRICE)


def rank_models(choice: ModelChoice, prompt_tokens: int, answers: int, times: Sequence[OptionTime]) -> RankedModels:
    """Rank the options; `times` has one entry for each. Models within all limits come first, by weighted sum; then
    models of unknown time (before all, where the choice is by time and an engine is idle: a trial); then models beyond
    a limit, the nearest first; then models of a full pool.

    Raises Refusal 429 when the choice is strict and every model that can serve is beyond a limit.
    """
    options = choice.options
    costs = [
        cost_of(option, prompt_tokens, answers, time.cached_tokens) for option, time in zip(options, times, strict=True)
    ]
    judged = [_judge(choice, option, time, cost) for option, time, cost in zip(options, times, costs, strict=True)]
    able = [position for position, each in enumerate(judged) if each.group != _OUT]
    totals = _totals(choice, times, costs, able)
    able.sort(key=lambda position: (judged[position].group, judged[position].overrun, -totals[position]))
    if choice.strict and able and judged[able[0]].group == _BEYOND:
        told = "; ".join(f"{options[position].name}: {judged[position].words}" for position in able)
        raise Refusal(
            429,
            f"No model is within the limits of this choice ({told}).",
            type="rate_limit_error",
            code="no_model_within_limits",
            retry_after_s=1.0,
        )
    others = [position for position, each in enumerate(judged) if each.group == _OUT]
    points = [
        ModelPoint(
            model=options[position].name,
            place=options[position].target.provider or options[position].target.pool or "",
            worker=times[position].worker,
            time_from=times[position].time_from,
            first_token_ms=_rounded(times[position].first_token_ms),
            answer_ms=_rounded(times[position].answer_ms),
            others_ms=round(times[position].others_ms, 1),
            cached_tokens=times[position].cached_tokens,
            cost=costs[position],
            quality=options[position].quality,
            total=None if judged[position].group == _OUT else round(totals[position], 4),
            verdict=_verdict(judged[position], position == able[0] if able else False, totals, position, able),
        )
        for position in (*able, *others)
    ]
    return RankedModels(tuple(able), tuple(points))


def _totals(choice: ModelChoice, times: Sequence[OptionTime], costs: Sequence[int], able: Sequence[int]) -> list[float]:
    """The weighted sums. A time counts with the delay that it causes to others, so that the plane has one price for
    a second, for any request that waits."""
    waits = [None if time.answer_ms is None else time.answer_ms + time.others_ms for time in times]
    fastest = min([wait for position in able if (wait := waits[position]) is not None], default=0.0)
    slowest = max([wait for position in able if (wait := waits[position]) is not None], default=0.0)
    cheapest = min([costs[position] for position in able], default=0)
    totals: list[float] = []
    for option, option_time, wait, cost in zip(choice.options, times, waits, costs, strict=True):
        first, others_first = option_time.first_token_ms, option_time.others_first_ms
        if choice.second_worth is not None:
            seconds = (slowest if wait is None else wait) / 1000.0
            early = ((slowest if first is None else first) + others_first) / 1000.0
            lost = cost + seconds * choice.second_worth + early * choice.first_token_worth
            totals.append((option.quality * choice.quality_worth - lost) / NANOS)
            continue
        time = UNKNOWN_SCORE if wait is None else (fastest / wait if wait > 0 else 1.0)
        money = cheapest / cost if cost > 0 else 1.0
        totals.append(option.score + choice.time * time + choice.money * money + choice.quality * option.quality)
    return totals


def _judge(choice: ModelChoice, option: ModelOption, time: OptionTime, cost: int) -> _Judged:
    if time.out:
        return _Judged(_OUT, 0.0, time.out)
    if time.full:
        return _Judged(_FULL, 0.0, "requests wait for admission to its pool")
    beyond: list[tuple[float, str]] = []
    unknown = ""
    for name, value, limit in (
        ("first token", time.first_token_ms, choice.most_first_token_ms),
        ("answer", time.answer_ms, choice.most_answer_ms),
    ):
        if limit is None:
            continue
        if value is None:
            unknown = f"its time to the {'first' if name == 'first token' else 'last'} token is unknown"
        elif value > limit:
            beyond.append((value / limit, f"{name} {value / 1000:.2f} s of {limit / 1000:g} s"))
    if choice.most_cost is not None and cost > choice.most_cost:
        over = cost / choice.most_cost if choice.most_cost else float("inf")
        beyond.append((over, f"${dollars(cost, 6)} of ${dollars(choice.most_cost, 6)}"))
    if choice.least_quality is not None and option.quality < choice.least_quality:
        over = choice.least_quality / option.quality if option.quality else float("inf")
        beyond.append((over, f"quality {option.quality:g} of at least {choice.least_quality:g}"))
    if beyond:
        return _Judged(
            _BEYOND, max(over for over, _ in beyond), "beyond a limit: " + ", ".join(words for _, words in beyond)
        )
    if time.answer_ms is None and time.idle and (choice.second_worth is not None or choice.time >= _MATTERS):
        # Otherwise it would never be chosen, and its time never be known.
        return _Judged(_TRIAL, 0.0, "a trial: its time is unknown, and an engine is idle")
    if unknown and not time.idle:
        return _Judged(_UNKNOWN, 0.0, unknown)
    return _Judged(_WITHIN, 0.0, "")


def _verdict(judged: _Judged, chosen: bool, totals: Sequence[float], position: int, able: Sequence[int]) -> str:
    if chosen:
        return f"chosen: {judged.words}" if judged.words else "chosen"
    if judged.words:
        return judged.words
    return f"{max(0.0, totals[able[0]] - totals[position]):.2f} less"


def _rounded(time_ms: float | None) -> float | None:
    return None if time_ms is None else round(time_ms, 1)
