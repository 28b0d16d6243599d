"""Orders to drain engines: the engines that an order is about, whether they may be drained, and how long it holds.

Every collector keeps every order, so that one that takes over, and an agent that restarts, know of it. Times are the
event loop's, in seconds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from pointsman_contracts.draining import DrainOrder, DrainQuery, OrderedDrain
from pointsman_contracts.pool import WorkerView
from pointsman_contracts.worker import DrainNotice, WorkerRegistration
from pointsman_engines.drain import Drain
from pointsman_metrics_collector.domain.engines import Key
from pointsman_metrics_collector.domain.kubernetes.pods import HOSTNAME

TOLD_AGAIN_S: Final = 1.0
"""An agent that doesn't report what was ordered is told again after this time."""
UNDONE_KEPT_S: Final = 10.0
"""How long an agent is told that its engine takes requests again."""
MISSED_KEPT_S: Final = 60.0
"""How long the order for an engine that is gone is kept: its agent may be restarting."""
CLOSE_MS: Final = 1500
"""Deadlines that differ by less are the same."""
_HOST: Final = "host"
_TRIALS_ONLY: Final = ("ejected", "suspect")
_MOST_KNOWN: Final = 20


class KnownWorker(NamedTuple):
    """A worker as the table has it."""

    registration: WorkerRegistration
    view: WorkerView


class DrainRefused(Exception):
    """An order that isn't carried out; `known`: URLs of engines that are known, if the one named isn't."""

    def __init__(self, why: str, known: tuple[str, ...] = ()) -> None:
        super().__init__(why)
        self.known: Final = known


@dataclass(slots=True)
class _Order:
    engine: Key
    """The worker, or the engine whose rank it is: its agent listens by that name."""
    boot_id: str
    drain: Drain | None
    """None: it takes requests again."""
    why: str
    since: float
    seen: float
    """When its worker was here last."""
    told_at: float | None = None
    """When its agent was told last."""


class DrainOrders:
    """The orders in force."""

    def __init__(self) -> None:
        self._orders: dict[Key, _Order] = {}

    def take_order(self, query: DrainQuery, known: Sequence[KnownWorker], now: float) -> tuple[OrderedDrain, ...]:
        """Carry an order out. Raises DrainRefused."""
        meant = _meant(query, known)
        found: list[OrderedDrain] = []
        for registration, view in meant:
            warning = "" if query.undo else _warning(registration, view, known, meant)
            if warning and not query.force:
                raise DrainRefused(
                    f"{registration.url} is the last engine of the pool {registration.pool} that serves {warning}"
                )
            before = view.draining
            found.append(
                OrderedDrain(
                    pool=registration.pool,
                    worker=registration.worker,
                    url=registration.url,
                    before="" if before is None else before.why or "unknown",
                    warning=warning,
                )
            )
        for registration, _ in meant:
            drain = None if query.undo else Drain(now + query.within_ms / 1000, query.why)
            order = _Order(
                engine=engine_key(registration),
                boot_id=registration.boot_id,
                drain=drain,
                why=query.why,
                since=now,
                seen=now,
            )
            self._orders[registration.pool, registration.worker] = order
        return tuple(found)

    def ordered_workers(self) -> tuple[Key, ...]:
        """The workers that there are orders about."""
        return tuple(self._orders)

    def find_drain(self, key: Key) -> Drain | None:
        """The drain that is ordered of a worker, or of an engine by its ranks."""
        order = self._orders.get(key) or next((each for each in self._orders.values() if each.engine == key), None)
        return None if order is None else order.drain

    def find_untold(
        self, workers: Mapping[Key, KnownWorker], now: float, with_agent: Iterable[Key]
    ) -> Iterator[tuple[Key, DrainOrder]]:
        """Orders to send to agents now, because their workers don't report what was ordered. Forgets an order whose
        engine has a new life or is gone. `with_agent`: the workers whose agents this collector tells."""
        told = frozenset(with_agent)
        for key, order in list(self._orders.items()):
            worker = workers.get(key)
            if worker is None:
                if now - order.seen > MISSED_KEPT_S:
                    del self._orders[key]
                continue
            order.seen = now
            registration, view = worker
            if registration.boot_id != order.boot_id:
                del self._orders[key]
                continue
            if order.drain is None and (view.draining is None or now - order.since > UNDONE_KEPT_S):
                # A worker that its agent ends, or its pod, goes on draining.
                del self._orders[key]
                continue
            wanted = None if order.drain is None else order.drain.notice_at(now)
            if key not in told or _is_reported(wanted, view.draining):
                continue
            if order.told_at is None or now - order.told_at >= TOLD_AGAIN_S:
                order.told_at = now
                left_ms = None if wanted is None else wanted.left_ms
                yield (
                    order.engine,
                    DrainOrder(boot_id=order.boot_id, left_ms=left_ms, why=order.why, undo=wanted is None),
                )


def engine_key(registration: WorkerRegistration) -> Key:
    """The name of a worker's engine: of a rank, the engine that it is a part of."""
    return registration.pool, registration.server or registration.worker


class DrainChanges:
    """Finds the moments at which workers begin to drain, get another deadline, or take requests again."""

    def __init__(self) -> None:
        self._told: dict[Key, tuple[DrainNotice, float]] = {}
        """The last published state, and its time."""

    @property
    def has_drains(self) -> bool:
        """Whether a worker drains."""
        return bool(self._told)

    def is_new(self, key: Key, notice: DrainNotice | None, now: float) -> bool:
        """Whether a worker's notice says something new."""
        known = self._told.get(key)
        if notice is None:
            return self._told.pop(key, None) is not None
        if known is not None:
            before, at = known
            expected = None if before.left_ms is None else max(0, before.left_ms - round((now - at) * 1000))
            if _is_reported(DrainNotice(left_ms=expected, why=before.why), notice):
                return False
        self._told[key] = notice, now
        return True

    def forget_worker(self, key: Key) -> None:
        """The worker is gone."""
        self._told.pop(key, None)


def _is_reported(wanted: DrainNotice | None, told: DrainNotice | None) -> bool:
    if wanted is None or told is None:
        return wanted is told
    if wanted.why != told.why or (wanted.left_ms is None) != (told.left_ms is None):
        return False
    return abs((wanted.left_ms or 0) - (told.left_ms or 0)) < CLOSE_MS


def _meant(query: DrainQuery, known: Sequence[KnownWorker]) -> list[KnownWorker]:
    there = [each for each in known if query.pool in ("", each.registration.pool)]
    if query.host:
        found = [each for each in there if query.host in _hosts(each.registration)]
        what = f"no engine is known on the host {query.host}"
    else:
        url = query.engine.rstrip("/").removesuffix("/v1")
        found = [each for each in there if each.registration.url.rstrip("/") == url]
        found = found or [each for each in there if each.registration.worker == query.engine]
        if len({each.registration.url for each in found}) > 1:
            pools = ", ".join(each.registration.pool for each in found)
            raise DrainRefused(f"{query.engine} is the name of several engines, in the pools {pools}: name the pool")
        what = f"no engine {query.engine or '(without a name)'} is known"
    if not found:
        where = f" in the pool {query.pool}" if query.pool else ""
        urls = dict.fromkeys(each.registration.url for each in known)
        raise DrainRefused(what + where, tuple(urls)[:_MOST_KNOWN])
    return found


def _hosts(registration: WorkerRegistration) -> tuple[str, ...]:
    labels = registration.labels
    return urlsplit(registration.url).hostname or "", labels.get(HOSTNAME, ""), labels.get(_HOST, "")


def _warning(
    registration: WorkerRegistration, view: WorkerView, known: Sequence[KnownWorker], meant: Sequence[KnownWorker]
) -> str:
    """The models that no other engine of the pool serves, in words."""
    if view.state != "serving":
        return ""
    served: set[str] = set()
    for each in known:
        other = each.registration
        same_role = "both" in (registration.role, other.role) or other.role == registration.role
        serves = each.view.state == "serving" and each.view.verdict not in _TRIALS_ONLY
        if other.pool == registration.pool and each not in meant and serves and same_role:
            served.update(other.models, other.loras)
    return ", ".join(name for name in (*registration.models, *registration.loras) if name not in served)
