"""Which sleeping engines of a pool to wake while requests wait and none serves. Pure; time is an argument.

An order is no answer: an engine counts as awake once it reports that it serves. Schedulers that know the same facts
choose the same engine, so several of them wake one.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from pointsman_contracts.demand import wake_pause_s
from pointsman_core.config.flow_control import Wake
from pointsman_plugins.scheduling.worker import Worker
from pointsman_scheduler.domain.serving import answers

ORDER_AGAIN_S: Final = 1.0
"""Messages get lost."""
BELIEVED_AFTER_S: Final = 1.0
"""A failure that is reported this soon after an order may be that of an earlier one."""
SETTLED_S: Final = 60.0
"""An engine that sleeps again sooner after it was woken, while requests wait, counts as one that can't be woken."""


class _Order(Struct):
    boot_id: str
    at: float
    sent_at: float = -math.inf
    served_at: float | None = None
    """Set once it has led to an engine that serves."""


class _Failures(Struct):
    count: int
    retry_at: float


class WakeOrders:
    """The orders of one scheduler to the engines of one pool."""

    def __init__(self) -> None:
        self._orders: Final[dict[str, _Order]] = {}
        self._failures: Final[dict[str, _Failures]] = {}

    @property
    def pending(self) -> tuple[str, ...]:
        """Engines that were ordered to wake and don't serve yet."""
        return tuple([name for name, order in self._orders.items() if order.served_at is None])

    def choose_orders(
        self, workers: Iterable[Worker], waiting: int, now: float, settings: Wake
    ) -> tuple[list[Worker], dict[str, str]]:
        """The engines to send an order now, and why orders to others failed since the last call. `workers` in an order
        that all schedulers have."""
        known = {worker.name: worker for worker in workers}
        failed = self._judge(known, now, settings.serve_within)
        share = settings.requests_per_engine
        wanted = 1 if share is None else max(1, math.ceil(waiting / share))
        asleep = [
            worker
            for worker in known.values()
            if worker.state == "asleep"
            and answers(worker)
            and worker.name not in self._orders
            and self._retry_at(worker.name) <= now
        ]
        asleep.sort(key=lambda worker: (_why_not(worker) != "", self._count(worker.name)))
        for worker in asleep[: max(0, wanted - len(self.pending))]:
            self._orders[worker.name] = _Order(worker.registration.boot_id, now)
        due = [
            worker
            for name, order in self._orders.items()
            if (worker := known[name]).state == "asleep" and now - order.sent_at >= ORDER_AGAIN_S
        ]
        for worker in due:
            self._orders[worker.name].sent_at = now
        return due, failed

    def close_demand(self, workers: Iterable[Worker], now: float) -> list[str]:
        """No request waits any more. Returns the ordered engines that serve; the verdict on the others is open."""
        serving = {worker.name for worker in workers if worker.state == "serving"}
        woken = [name for name, order in self._orders.items() if order.served_at is None and name in serving]
        for name in woken:
            self._orders[name].served_at = now
        for name in self.pending:
            del self._orders[name]
        return woken

    def _judge(self, known: Mapping[str, Worker], now: float, within_s: float) -> dict[str, str]:
        for name in self._failures.keys() - known.keys():
            del self._failures[name]
        failed: dict[str, str] = {}
        for name, order in list(self._orders.items()):
            worker = known.get(name)
            if worker is None or worker.registration.boot_id != order.boot_id:
                del self._orders[name]  # another life of it has its own beginning
            elif order.served_at is not None:
                del self._orders[name]
                if worker.state == "asleep" and now - order.served_at < SETTLED_S:
                    failed[name] = f"it slept again {now - order.served_at:.0f} s after it was woken"
                else:
                    self._failures.pop(name, None)
            elif now - order.at > within_s:
                failed[name] = f"it doesn't serve {within_s:g} s after the order ({worker.state})"
            elif now - order.at > BELIEVED_AFTER_S and (why := _why_not(worker)):
                failed[name] = why
        for name in failed:
            self._orders.pop(name, None)
            count = self._count(name) + 1
            self._failures[name] = _Failures(count, now + wake_pause_s(count))
        return failed

    def _count(self, name: str) -> int:
        failures = self._failures.get(name)
        return 0 if failures is None else failures.count

    def _retry_at(self, name: str) -> float:
        failures = self._failures.get(name)
        return -math.inf if failures is None else failures.retry_at


def _why_not(worker: Worker) -> str:
    """Why its agent says that it can't wake it; empty when it says nothing of the kind."""
    report = worker.report
    return report.wake_failed if report is not None and worker.state == "asleep" else ""
