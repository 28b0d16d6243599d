"""A request's service level: as facts of the request, and whether its answer kept it."""

from typing import Final, Literal

from pointsman_contracts.journey import FactsChanges, RequestFacts
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.service_level import ServicePromise
from pointsman_core.config.service_level import ServiceLevel

_BROKEN: Final = frozenset(("engine_error", "timeout", "cut_off"))
"""Outcomes that break every promise. Others but `ok` say nothing: the client left, or its request was wrong."""

_CLIENT_ERROR: Final = 400
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


def facts_of_level(level: ServiceLevel, name: str) -> FactsChanges:
    """The level as facts of a request. `name`: of the profile, model or key that has it."""
    changes: FactsChanges = {"slo_class": level.class_ or name, "slo_late": level.late, "slo_weight": level.weight}
    if level.ttft is not None:
        changes["slo_ttft_ms"] = level.ttft * 1000.0
    if level.itl is not None:
        changes["slo_itl_ms"] = level.itl * 1000.0
    return changes


def promise_of(
    facts: RequestFacts, predicted_ttft_ms: float | None = None, predicted_itl_ms: float | None = None
) -> ServicePromise | None:
    """The promise that these facts are; None without an objective."""
    if facts.slo_ttft_ms is None and facts.slo_itl_ms is None:
        return None
    return ServicePromise(
        service_class=facts.slo_class,
        ttft_ms=facts.slo_ttft_ms,
        itl_ms=facts.slo_itl_ms,
        predicted_ttft_ms=predicted_ttft_ms,
        predicted_itl_ms=predicted_itl_ms,
        spilled_from=facts.slo_spilled_from,
    )


def promise_missed(facts: RequestFacts, status: int) -> ServicePromise | None:
    """The promise that a rejection with this status misses; None where the request itself was wrong."""
    return promise_of(facts) if _refuses(status) else None


def level_result(end: ResponseCompleted) -> Literal["kept", "missed", "unknown", "refused"]:
    """How a request with a service level ended."""
    if end.outcome == "rejected" and _refuses(end.status):
        return "refused"
    return "unknown" if end.kept is None else "kept" if end.kept else "missed"


def _refuses(status: int) -> bool:
    return status == _TOO_MANY or status >= _SERVER_ERROR


def was_kept(promise: ServicePromise, end: ResponseCompleted) -> bool | None:
    """None where it is unknown: a whole answer doesn't show its first token, and only the engine's usage has the number
    of its tokens. Without usage, a stream has as many tokens as events with text, or more."""
    if end.outcome in _BROKEN:
        return False
    if end.outcome != "ok" or end.status >= _CLIENT_ERROR:
        return None
    ttft_ms, duration_ms, gaps = end.ttft_ms, end.duration_ms, _gaps(end)
    if not end.stream:
        return _whole_kept(promise, duration_ms, gaps)
    first = promise.ttft_ms is None or (None if ttft_ms is None else ttft_ms <= promise.ttft_ms)
    if promise.itl_ms is None or first is False:
        return first
    if ttft_ms is None:
        return None
    if gaps is None:
        chunks = None if end.usage is None else end.usage.chunks
        return first if chunks and duration_ms - ttft_ms <= promise.itl_ms * (chunks - 1) else None
    return first and duration_ms - ttft_ms <= promise.itl_ms * gaps


def between_tokens_ms(end: ResponseCompleted, *, at_most: bool = False) -> float | None:
    """The mean time between two tokens of a streamed answer; None where it is unknown. `at_most`: the longest that it
    may have been, where the tokens weren't reported."""
    chunks = None if end.usage is None else end.usage.chunks
    gaps = (chunks - 1 if chunks else None) if at_most else _gaps(end)
    return (end.duration_ms - end.ttft_ms) / gaps if end.stream and gaps and end.ttft_ms is not None else None


def _gaps(end: ResponseCompleted) -> int | None:
    usage = end.usage
    return None if usage is None or usage.estimated else max(0, usage.completion_tokens - 1)


def _whole_kept(promise: ServicePromise, duration_ms: float, gaps: int | None) -> bool | None:
    """A whole answer is in time when its last token is."""
    if promise.ttft_ms is None:
        return None
    if duration_ms <= promise.ttft_ms:
        return True
    if promise.itl_ms is None or gaps is None:
        return None
    return duration_ms <= promise.ttft_ms + promise.itl_ms * gaps
