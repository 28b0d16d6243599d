"""Why an endpoint was chosen, and why not another one, in words. Pure: everything is in `RequestScheduled`."""

from typing import NamedTuple

from pointsman_contracts.agent import OTHER
from pointsman_contracts.mirroring import MirrorCompared
from pointsman_contracts.scheduling import CandidateColumns, ProfileRun, RequestScheduled

_ALIKE = 0.005
"""Weighted totals closer than this are reported as a tie."""


class CandidateVerdict(NamedTuple):
    """One candidate's part in a decision."""

    worker: str
    total: float | None
    """Weighted sum of its scores; None when a filter removed it."""
    words: str


def primary(event: RequestScheduled) -> ProfileRun | None:
    """The run whose choice was used."""
    return next((run for run in event.runs if run.profile == event.primary), None)


def short(event: RequestScheduled) -> str:
    """Why the first endpoint won, in a few words."""
    run = primary(event)
    chosen = event.endpoints[0] if event.endpoints else ""
    if run is None or chosen not in run.candidates.workers:
        return event.reason
    columns = run.candidates
    rivals = _rivals(columns, chosen)
    if not rivals:
        removed = len(columns.filtered)
        return f"the only candidate, {removed} removed" if removed else "the only candidate"
    rival = max(rivals, key=lambda row: columns.totals[row] or 0.0)
    here = columns.workers.index(chosen)
    gains = _gains(run, here, rival)
    if not gains or max(gains.values()) < _ALIKE:
        return "all alike" if len(rivals) > 1 else "both alike"
    best = max(gains, key=lambda name: gains[name])
    return _advantage(best, columns, here, rival)


def legs(event: RequestScheduled) -> str:
    """Where the prompt is computed, and by which prediction; empty where none decided."""
    forecast = event.forecast
    if forecast is None:
        return ""
    place = f"by {forecast.worker}" if forecast.pays else "where the answer is"
    return (
        f"prompt computed {place}: predicted first token after {forecast.alone_ttft_ms:,.0f} ms on one engine, "
        f"{forecast.apart_ttft_ms:,.0f} ms on two ({forecast.prefill_ms:,.0f} ms at {forecast.worker}, handed over in "
        f"{forecast.handover_ms:,.0f} ms); cost {forecast.alone:,.0f} against {forecast.apart:,.0f}"
    )


def prelude(event: RequestScheduled) -> str:
    """The chosen worker's work before the prompt; empty where there is none."""
    forecast = event.prelude
    if forecast is None:
        return ""
    parts = [f"{tokens:,} tokens from {tier}" for tier, tokens in forecast.fetched.items()]
    words = [f"fetches {' and '.join(parts)} in {forecast.fetch_ms:,.1f} ms"] if parts else []
    if forecast.load_ms:
        words.append(f"loads the adapter in {forecast.load_ms:,.1f} ms")
    return f"before the prompt: {event.endpoints[0]} {', and '.join(words)}, as predicted"


def describe_turn(event: RequestScheduled) -> list[str]:
    """The session that the request belongs to, and its place there, in lines; none for a request without a session."""
    session, turn = event.session, event.turn
    if session is None:
        return []
    agent = session.agent
    names = [f"session {session.id}"]
    if agent is not None:
        names += [f"of {agent.name}"] if agent.name != OTHER else []
        names += [f"begun by {agent.parent}"] if agent.parent is not None else []
    if turn is None:
        return [" ".join(names)]
    facts = [f"{' '.join(names)}, turn {turn.number}"]
    if turn.continues:
        facts.append(
            "the last one hasn't ended" if turn.gap_ms is None else f"{spell_time(turn.gap_ms)} after the last"
        )
    if turn.kept_for_ms is not None:
        half = "more than half predicted not to come back"
        if turn.half_back_ms is not None:
            half = f"half predicted to come back within {spell_time(turn.half_back_ms)}"
        worth = f"its prefix worth its place for {spell_time(turn.kept_for_ms)}"
        facts.append(f"{half}, {worth if turn.kept_for_ms else 'its prefix not worth its place'}")
    lines = [" · ".join(facts)]
    if turn.continues:
        lost = max(0, turn.continued_tokens - event.cached_tokens)
        lines.append(
            f"of the {turn.continued_tokens:,} tokens that it goes on with, "
            f"{min(turn.continued_tokens, event.cached_tokens):,} believed kept, {lost:,} lost"
        )
    if turn.why:
        lines.append(f"moved ({turn.move}): {turn.why}" if turn.move else turn.why)
    return lines


def spell_time(milliseconds: float) -> str:
    """A time between turns."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:,.1f} s" if milliseconds < 100_000 else f"{milliseconds / 60_000:,.0f} min"


def verdicts(run: ProfileRun) -> list[CandidateVerdict]:
    """Every candidate, the chosen one first, then by total, then those that filters removed."""
    columns = run.candidates
    chosen = run.chosen[0] if run.chosen else None
    here = columns.workers.index(chosen) if chosen in columns.workers else None
    rows = sorted(
        range(len(columns.workers)),
        key=lambda row: (row != here, columns.workers[row] in columns.filtered, -(_total(columns, row) or 0.0)),
    )
    return [CandidateVerdict(columns.workers[row], _total(columns, row), _words(run, row, here)) for row in rows]


def _words(run: ProfileRun, row: int, here: int | None) -> str:
    columns = run.candidates
    worker = columns.workers[row]
    if worker in columns.filtered:
        return f"removed by {columns.filtered[worker]}"
    if row == here:
        return "chosen"
    if here is None or not columns.scores:
        return "not chosen"
    losses = _gains(run, here, row)
    behind = sum(losses.values())
    parts = [
        f"{name} {-loss:+.2f} ({_compared(name, columns, row, here)})"
        for name, loss in sorted(losses.items(), key=lambda item: -abs(item[1]))
        if abs(loss) >= _ALIKE
    ]
    if not parts:
        return "equal; the tie was broken by chance"
    return f"{abs(behind):.2f} {'less' if behind >= 0 else 'more'}: {', '.join(parts)}"


def _gains(run: ProfileRun, here: int, there: int) -> dict[str, float]:
    """Scorer → by how much its weighted score is higher here than there."""
    found: dict[str, float] = {}
    for name, scores in run.candidates.scores.items():
        mine, other = scores[here], scores[there]
        if mine is not None and other is not None:
            found[name] = run.weights.get(name, 1.0) * (mine - other)
    return found


def _advantage(scorer: str, columns: CandidateColumns, here: int, there: int) -> str:
    if scorer.startswith("prefix"):
        return f"{columns.matched_tokens[here]:,} prompt tokens cached"
    return f"{_NOUNS.get(scorer, scorer)}: {_compared(scorer, columns, here, there)}"


_NOUNS = {"queue": "shorter queue", "kv-utilization": "emptier KV cache"}


def _compared(scorer: str, columns: CandidateColumns, row: int, other: int) -> str:
    name = columns.workers[other]
    if scorer.startswith("prefix"):
        return f"{columns.matched_tokens[row]:,} tokens cached, {name} {columns.matched_tokens[other]:,}"
    if scorer == "queue":
        return f"{columns.waiting[row]} waiting, {name} {columns.waiting[other]}"
    if scorer == "kv-utilization":
        return f"{columns.kv_usage[row]:.0%} used, {name} {columns.kv_usage[other]:.0%}"
    scores = columns.scores[scorer]
    return f"{scores[row]:.2f}, {name} {scores[other]:.2f}"


def _rivals(columns: CandidateColumns, chosen: str) -> list[int]:
    return [
        row
        for row, worker in enumerate(columns.workers)
        if worker != chosen and worker not in columns.filtered and _total(columns, row) is not None
    ]


def _total(columns: CandidateColumns, row: int) -> float | None:
    return columns.totals[row] if columns.totals else None


def describe_copy(event: MirrorCompared) -> str:
    """What became of a copy, in a few words."""
    begun = f"{event.copy.model} answered a copy, {event.copy_id}"
    if event.outcome != "answered":
        return f"{event.copy.model} didn't answer a copy, {event.copy_id}: {event.outcome}, {event.reason}"
    if event.likeness is None:
        return f"{begun}; the answers can't be compared"
    likeness = event.likeness
    alike = "the same text" if likeness.same_text else f"{likeness.words:.0%} of the words in common"
    calls = {True: ", the same calls", False: ", other calls", None: ""}[likeness.same_calls]
    return f"{begun}; {alike}{calls}"
