"""Background requests of a pool: which wait, which go to an engine, and which leave theirs."""

from typing import Final

from pointsman_core.refusal import Refusal
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.late_binding import BackgroundView, Binder, Bound
from pointsman_scheduler.domain.ledger import Ledger
from pointsman_scheduler.domain.outcome import Postponed, Refused
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.serving import may_serve

RETRY_AFTER_S: Final = 1.0
_NO_CAPACITY: Final = Refusal(
    429,
    "No engine had capacity left for background work; retry later, or without the priority of batches.",
    type="rate_limit_error",
    code="no_capacity_left",
    retry_after_s=RETRY_AFTER_S,
    dropped_reason="rejected-no-capacity-left",
)


def wait_or_refuse(
    request: ScheduleRequest, policy: Policy, binder: Binder, books: Ledger, now: float
) -> Postponed | Refused | None:
    """A new background request waits, and one that has waited in vain is refused; None for one that goes to an engine
    now: capacity is there, or another part has chosen the engine."""
    if request.bound or request.facts.workers is not None or not policy.flow_control.settings.enabled:
        return None
    held = books.find_reservation(request.key)
    if held is not None:
        if held.change.attempt >= request.attempt:
            return None  # sent again: it goes where it is
        # It was stopped, which its edge reports on another subject.
        books.take_off(held, now)
    if request.bound is not None:
        return Refused(_NO_CAPACITY, [])
    binder.background.add_waiting(request, now * 1000.0)
    return Postponed(request, "")


def bind_background(fleet: Fleet, binder: Binder, policy: Policy | None, now: float) -> list[Bound]:
    """The background requests that go to an engine now, or are refused."""
    if policy is None or not len(binder.background):
        return []
    full = policy.flow_control.detector.saturation(fleet, now) >= policy.flow_control.negative_band.settings.ceiling
    return binder.background.bind_next(
        now * 1000.0,
        _see_background(fleet, binder, policy, now),
        lambda worker, name: may_serve(fleet, worker, name, now),
        full=full,
    )


def find_stopped(fleet: Fleet, binder: Binder, books: Ledger, policy: Policy | None, now: float) -> list[Hold]:
    """The running background requests that leave their engines now, because other requests came; each is named once."""
    if policy is None or not binder.background.running:
        return []
    return binder.background.find_stopped(_see_background(fleet, binder, policy, now), books.find_reservation, now)


def _see_background(fleet: Fleet, binder: Binder, policy: Policy, now: float) -> BackgroundView:
    settings, estimator = policy.flow_control.settings, None if policy.forecast is None else policy.forecast.best
    known = estimator is not None and estimator.model.was_trusted
    return BackgroundView(
        workers=fleet.workers,
        rule=settings.background,
        rates=estimator.model.rates if estimator is not None and known else None,
        budget=float(estimator.batch_tokens) if estimator is not None else 1.0,
        waits_ms=settings.ttl * 1000.0,
        replicas=1 + binder.count_peers(now * 1000.0),
        awaited=frozenset([each.row for each in binder.waiting]),
    )
