"""The regret of one request, and what would have had to differ for the other engine to cost less. Pure: the formula is
computed again from the inputs in the event."""

import math
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from pointsman_contracts.regret import JudgedCandidate, JudgedChoice, JudgedRequest, RequestsJudged
from pointsman_delay.formula import EngineFigures
from pointsman_delay.hindsight import EngineThen, Scale, costs_us
from pointsman_delay.pass_model import Rates

_REASONS: Final = {
    "": "the best choice",
    "tie": "equal scores",
    "picker": "the picker",
    "late-binding": "bound to the engine that it was planned for",
}


def judgement(event: RequestsJudged) -> list[RenderableType]:
    """The lines below the event's own line."""
    parts: list[RenderableType] = []
    for request in event.requests:
        parts += [Text(f"  {words}", "dim") for words in _choices(request)]
        parts.append(_costs(request))
        parts += [Text(f"    {words}", "dim") for words in ways(event, request)]
    return parts


def _choices(request: JudgedRequest) -> list[str]:
    lines: list[str] = []
    for place, choice in enumerate(request.choices):
        kind = "regret" if place == 0 else f"regret of the shadow {choice.profile} ({choice.worker})"
        lines.append(f"{kind} {choice.regret_us / 1e3:,.1f} ms of {choice.cost_us / 1e3:,.1f} ms: {_why(choice)}")
        if choice.filter:
            lines.append(
                f"the filter {choice.filter} removed an engine that would have cost {_ms(choice.filtered_us)} less"
            )
    return lines


def _why(choice: JudgedChoice) -> str:
    return _REASONS.get(choice.reason) or choice.reason.replace("scorer:", "decided by ")


def _costs(request: JudgedRequest) -> Table:
    """The cost of each engine with what is known now."""
    table = Table.grid(padding=(0, 2, 0, 0))
    chosen = request.choices[0].worker if request.choices else ""
    shadows = {choice.worker: choice.profile for choice in request.choices[1:]}
    for worker, cost in request.costs_us.items():
        note = "chosen" if worker == chosen else ""
        if worker in shadows:
            note += f"{', ' if note else ''}by {shadows[worker]} too" if note else f"the choice of {shadows[worker]}"
        table.add_row(f"    {worker}", _ms(cost), note, style="bold green" if worker == chosen else "")
    return table


def ways(event: RequestsJudged, request: JudgedRequest) -> list[str]:
    """The changes that would have made the more expensive of the two engines cost as little as the other."""
    if len(request.candidates) != 2:
        return []
    cheap, dear = sorted(request.candidates, key=lambda each: each.cost_us)
    scale = Scale(Rates(*event.rates), event.others, event.batch_tokens, event.first_token_weight)
    if not math.isclose(_cost(dear, request, scale), dear.cost_us, abs_tol=2):
        return []  # of a version with another formula
    gap = dear.cost_us - cheap.cost_us
    figures, changes = _figures(dear), list[str]()

    def with_tokens(fewer: int) -> JudgedCandidate:
        waiting = figures.waiting - fewer
        whole, last = divmod(waiting, event.batch_tokens)
        return _changed(dear, figures._replace(waiting=waiting, whole=whole, last=last))

    def with_prompt(fewer: int) -> JudgedCandidate:
        return replace(dear, uncached_tokens=dear.uncached_tokens - fewer)

    def with_arrivals(fewer: int) -> JudgedCandidate:
        return replace(dear, came=dear.came - fewer)

    def with_pass(fewer: int) -> JudgedCandidate:
        return _changed(dear, figures._replace(free_at=figures.free_at - fewer))

    left = figures.free_at - request.at_ms
    for most, change, said in (
        (int(figures.waiting), with_tokens, "{} fewer prompt tokens waited there"),
        (dear.uncached_tokens - 1, with_prompt, "it held {} more of the prompt's tokens"),
        (dear.came, with_arrivals, "{} fewer of the requests that came later had gone there"),
        (math.ceil(max(0.0, left)), with_pass, "its pass in flight had ended {} ms sooner"),
    ):
        fewer = _least(most, lambda number, change=change: _cost(change(number), request, scale) <= cheap.cost_us)
        if fewer is not None:
            changes.append(said.format(f"{fewer:,}"))
    words = f"{dear.worker} would have cost {_ms(gap)} more than {cheap.worker}"
    if not changes:
        return [f"{words}; no single change would have made it as cheap"]
    return [f"{words}; it would have cost as little if {', or if '.join(changes)}"]


def _least(most: int, enough: Callable[[int], bool]) -> int | None:
    """The least number in [1, most] that is enough, when more of it is never less; None when none is."""
    if most < 1 or not enough(most):
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _cost(candidate: JudgedCandidate, request: JudgedRequest, scale: Scale) -> int:
    then = EngineThen(candidate.worker, candidate.uncached_tokens, candidate.came, _figures(candidate))
    return costs_us([then], float(request.at_ms), request.prompt_tokens, request.output_tokens, scale)[0]


def _figures(candidate: JudgedCandidate) -> EngineFigures:
    return EngineFigures(*candidate.figures)


def _changed(candidate: JudgedCandidate, figures: EngineFigures) -> JudgedCandidate:
    return replace(candidate, figures=tuple(figures))


def _ms(us: int) -> str:
    return f"{us / 1e3:,.1f} ms"
