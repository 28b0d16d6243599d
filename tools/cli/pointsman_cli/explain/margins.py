"""The differences that would have let another candidate win. Pure: recomputed from the values in the event.

A scorer's formula is applied only where it gives the recorded scores; for any other scorer only the score is shown.
"""

from collections.abc import Callable, Sequence
from typing import Final

from pointsman_contracts.scheduling import CandidateColumns, ProfileRun

RIVALS: Final = 3
"""Most candidates whose margins are shown, the nearest first."""
_EXACT: Final = 2e-4
"""Scores in events have four digits."""
_MOST_STEPS: Final = 10_000

Column = list[float]


def margins(run: ProfileRun) -> list[str]:
    """A line for each of the nearest rivals that lost: by how much it lost, and what would have made it win."""
    columns = run.candidates
    if not run.chosen or not columns.totals or run.chosen[0] not in columns.workers:
        return []
    mine = columns.totals[columns.workers.index(run.chosen[0])]
    if mine is None:
        return []
    rows = [row for row, total in enumerate(columns.totals) if total is not None and abs(mine - total) > _EXACT]
    rows.sort(key=lambda row: mine - (columns.totals[row] or 0.0))
    return [_line(run, row, mine - (columns.totals[row] or 0.0)) for row in rows[:RIVALS]]


def _line(run: ProfileRun, row: int, margin: float) -> str:
    columns = run.candidates
    name = columns.workers[row]
    if margin < -_EXACT:
        return f"{name} had the higher total, by {-margin:.2f}"
    ways = [way for way in (_way(run, row, margin, scorer) for scorer in columns.scores) if way]
    age = columns.ages_ms[row]
    report = f"; its load report was {age:.0f} ms old" if age >= 0 else "; it had sent no load report"
    if not ways:
        return f"{name} is {margin:.2f} behind: no single score could have made it win{report}"
    return f"{name} is {margin:.2f} behind; it would win if {', or if '.join(ways)}{report}"


def _way(run: ProfileRun, row: int, margin: float, scorer: str) -> str | None:
    """The change of one scorer's signal that lets the candidate win; None when none does."""
    columns, weight = run.candidates, run.weights.get(scorer, 1.0)
    scores = columns.scores[scorer]
    score = scores[row]
    if score is None or weight <= 0:
        return None
    for signal, formula, said in _SIGNALS:
        values = signal(columns)
        if len(set(values)) > 1 and _matches(formula, values, scores):
            return _fewer(run=run, row=row, scorer=scorer, values=values, formula=formula, said=said)
    needed = score + margin / weight
    if needed > 1.0 + _EXACT:
        return None
    whole = _prompt_of(columns, scores)
    if whole:
        more = needed * whole - columns.matched_tokens[row]
        return f"it held {more:,.0f} more of the prompt's tokens" if more >= 1 else None
    if _is_free_cache(columns, scores):
        return f"its KV cache were {max(0.0, 1.0 - needed):.0%} used, not {columns.kv_usage[row]:.0%}"
    return f"its score of {scorer} were {needed:.2f}, not {score:.2f}"


def _is_free_cache(columns: CandidateColumns, scores: Sequence[float | None]) -> bool:
    """Whether the scores are the free part of each KV cache. Where all caches are alike, any equal scores could be."""
    pairs = [(score, used) for score, used in zip(scores, columns.kv_usage, strict=True) if score is not None]
    usages = [used for _, used in pairs]
    return max(usages) - min(usages) > _EXACT and all(abs(score - (1.0 - used)) < _EXACT for score, used in pairs)


def _fewest_first(values: Sequence[float]) -> Column:
    least, most = min(values), max(values)
    return [1.0] * len(values) if most == least else [(most - value) / (most - least) for value in values]


_SIGNALS: Final[tuple[tuple[Callable[[CandidateColumns], Sequence[int]], Callable[[Column], Column], str], ...]] = (
    (lambda columns: columns.waiting, _fewest_first, "its queue were {} shorter"),
    (lambda columns: columns.running, _fewest_first, "its batch were {} smaller"),
)


def _matches(formula: Callable[[Column], Column], values: Sequence[int], scores: Sequence[float | None]) -> bool:
    """Whether the formula gives the recorded scores, among the candidates that have one."""
    there = [place for place, score in enumerate(scores) if score is not None]
    expected = formula([float(values[place]) for place in there])
    return all(abs((scores[place] or 0.0) - score) < _EXACT for place, score in zip(there, expected, strict=True))


def _fewer(
    run: ProfileRun, row: int, scorer: str, values: Sequence[int], formula: Callable[[Column], Column], said: str
) -> str | None:
    """The least reduction of a count that lets the candidate win, with everyone's scores computed anew."""
    columns, weight = run.candidates, run.weights.get(scorer, 1.0)
    scores, totals = columns.scores[scorer], columns.totals
    there = [place for place, score in enumerate(scores) if score is not None]
    rest = {place: (totals[place] or 0.0) - weight * (scores[place] or 0.0) for place in there}
    for fewer in range(1, min(values[row], _MOST_STEPS) + 1):
        changed = formula([float(values[place] - fewer * (place == row)) for place in there])
        anew = {place: rest[place] + weight * score for place, score in zip(there, changed, strict=True)}
        if all(anew[row] > total for place, total in anew.items() if place != row):
            return said.format(f"{fewer:,}")
    return None


def _prompt_of(columns: CandidateColumns, scores: Sequence[float | None]) -> float:
    """The tokens of the prompt's blocks, when the scores are matched tokens over them; else 0."""
    pairs = [
        (matched, score) for matched, score in zip(columns.matched_tokens, scores, strict=True) if score is not None
    ]
    found = max(pairs, default=(0, 0.0))
    if not found[0] or not found[1]:
        return 0.0
    whole = found[0] / found[1]
    return whole if all(abs(matched / whole - score) < _EXACT for matched, score in pairs) else 0.0
