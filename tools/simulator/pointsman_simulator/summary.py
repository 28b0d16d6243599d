"""Figures that show the quality of a replay."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pointsman_simulator.curves import LengthMean, by_length, slowdowns
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Outcomes
from pointsman_simulator.judged import Regret
from pointsman_simulator.trace import TraceRequest, reusable


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in ms."""

    requests: int
    reuse: float
    """Share of all prompt tokens that came from a cache."""
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    itl_mean: float
    """Over all gaps between tokens."""
    e2e_mean: float
    e2e_p99: float
    imbalance: float
    """Busiest worker's prompt and output tokens over the mean of all workers, at least 1."""
    regret_mean: float = 0.0
    """The mean regret of a judged request, as docs/regret.md defines it."""
    judged: int = 0
    """Requests that were judged: the first ones teach the judge."""
    session_p95: float = 0.0
    """From the arrival of a session's first request to the end of its last one; 0 in a trace without sessions."""
    reuse_possible: float = 0.0
    """For a trace with sessions: `reuse` as a share of what one endless cache has; 0 where nothing can be reused."""
    by_length: tuple[LengthMean, ...] = ()
    slowdowns: tuple[float, ...] = ()
    """At the percentiles of `curves`."""


def summarize(
    outcomes: Outcomes,
    workers: int,
    regret: Regret | None = None,
    engine: EngineConfig | None = None,
    trace: Sequence[TraceRequest] = (),
    possible: float | None = None,
) -> Summary:
    """`engine`: by which slowdowns are measured; the default one when None. `trace`: where its requests have sessions;
    `possible`: what `reusable` says of it, where the caller knows it."""
    engine = engine or EngineConfig()
    sessions = [each.session for each in trace]
    requests = outcomes.requests
    arrived = np.array(outcomes.arrived)
    first = np.array([request.first_token_at for request in requests])
    finished = np.array([request.finished_at for request in requests])
    prompt = np.array([request.prompt_tokens for request in requests])
    output = np.array([request.output_tokens for request in requests])
    cached = np.array([request.cached_tokens for request in requests])
    ttft = first - arrived
    e2e = finished - arrived
    gaps = max(1, int((output - 1).sum()))
    tokens = np.bincount(np.array(outcomes.workers), weights=prompt - cached + output, minlength=workers)
    reuse = float(cached.sum() / prompt.sum())
    if possible is None:
        possible = reusable(trace, engine.block_size) if any(sessions) else 0.0
    return Summary(
        requests=len(requests),
        reuse=reuse,
        ttft_mean=float(ttft.mean()),
        ttft_p50=float(np.quantile(ttft, 0.5)),
        ttft_p90=float(np.quantile(ttft, 0.9)),
        ttft_p99=float(np.quantile(ttft, 0.99)),
        itl_mean=float((finished - first).sum() / gaps),
        e2e_mean=float(e2e.mean()),
        e2e_p99=float(np.quantile(e2e, 0.99)),
        imbalance=float(tokens.max() / tokens.mean()),
        regret_mean=regret.mean_ms if regret is not None else 0.0,
        judged=regret.judged if regret is not None else 0,
        session_p95=_session_p95(outcomes, sessions),
        reuse_possible=reuse / possible if possible else 0.0,
        by_length=by_length(outcomes),
        slowdowns=slowdowns(outcomes, engine),
    )


def _session_p95(outcomes: Outcomes, sessions: Sequence[str | None]) -> float:
    spans: dict[str, tuple[float, float]] = {}
    for session, arrived, request in zip(sessions, outcomes.arrived, outcomes.requests, strict=bool(sessions)):
        if session is not None:
            first, last = spans.get(session, (arrived, request.finished_at))
            spans[session] = (min(first, arrived), max(last, request.finished_at))
    return float(np.quantile([last - first for first, last in spans.values()], 0.95)) if spans else 0.0
