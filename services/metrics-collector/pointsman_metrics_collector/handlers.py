"""Turns messages of the bus into snapshots, statistics, events and counters."""

from collections import Counter as Count
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from pointsman_contracts.draining import DrainAnswer, DrainQuery
from pointsman_contracts.money import nanos
from pointsman_contracts.pool import EnginePrice, WorkerView
from pointsman_contracts.response import Attempt, ResponseCompleted
from pointsman_contracts.subjects import token
from pointsman_contracts.timing import SNAPSHOT_GAP_S, TIMES
from pointsman_contracts.verdicts import WorkerVerdicts
from pointsman_contracts.worker import WorkerAnnouncement, WorkerLoad, WorkerRegistration
from pointsman_engines.pace import ReportPace
from pointsman_hosting.configuration import Revision
from pointsman_journey.heartbeat import Heartbeat
from pointsman_metrics_collector.announcer import MessageNumbers
from pointsman_metrics_collector.domain.drains import DrainChanges, DrainOrders, DrainRefused, engine_key
from pointsman_metrics_collector.domain.engines import Key, ScrapedEngine, listed_engines
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_metrics_collector.domain.models import OTHER, ModelNames, ModelWindow
from pointsman_metrics_collector.domain.ownership import owner
from pointsman_metrics_collector.domain.verdicts import JudgedWorkers, VerdictTable
from pointsman_metrics_collector.domain.workers import Change, WorkerTable
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.jetstream.listening import ListeningClock
from pointsman_runtime.telling.logs import Log

TICK_S: Final = 0.05
STATISTICS_MIN_GAP_S: Final = 1.0
STATISTICS_MAX_GAP_S: Final = 5.0
_FOUND: Final = ("kubernetes", "file")
"""Kinds of discovery that have no engines before their first answer."""
_NONE: Final = ("",)
"""Routes of a collector that knows no pool; without any it would know all."""

_log = Log("engines")


class Handlers:
    """The state of one collector. Every replica receives every message and holds the whole state."""

    def __init__(
        self,
        bus: Bus,
        heartbeat: Heartbeat,
        announcer: MessageNumbers,
        count: Callable[[ResponseCompleted, str, str], None],
        clock: Callable[[], float],
    ) -> None:
        """`count(completed, pool, model)` counts a completion under names that are bounded; `clock` is the event
        loop's."""
        self.changes: Count[tuple[str, str]] = Count()
        """Workers that `joined`, fell `silent` and `left`, by pool."""
        self.engines: Mapping[Key, ScrapedEngine] = {}
        """Engines without an agent: those that the configuration lists, and those that were found."""
        self.findings: dict[str, EngineSource] = {}
        """The latest finding about the endpoints of each pool."""
        self._bus = bus
        self._heartbeat = heartbeat
        self._announcer = announcer
        self._count = count
        self._clock = clock
        self._listening = ListeningClock()
        self._table = WorkerTable()
        self._verdicts = VerdictTable()
        self.drains: Final = DrainOrders()
        self.on_drain_ordered: Callable[[], None] = lambda: None
        """Called after an order to drain an engine, or to end that."""
        self._drain_changes: Final = DrainChanges()
        self._configured: tuple[str, ...] = ()
        self._prices: dict[str, EnginePrice] = {}
        self._found: tuple[str, ...] = ()
        """Pools whose endpoints the cluster or a file names."""
        self._listed_engines: Mapping[Key, ScrapedEngine] = {}
        self._names: ModelNames | None = None
        self._listed = False
        self._complete = False
        self._paces: dict[str, ReportPace] = {}
        self._windows: dict[str, tuple[ModelWindow, ReportPace]] = {}
        self._unsaid: set[str] = set()
        """Models whose statistics changed since the last tick."""

    @property
    def missing(self) -> str | None:
        """Why no snapshot is published yet; None when they are."""
        if not self._listed:
            return "the registered workers aren't known yet"
        return None if self._complete else "registered workers were not heard yet"

    def collectors_of(self, pool: str) -> set[str]:
        """The living collectors that know the endpoints of a pool; all living ones while none does. A new collector
        doesn't yet know endpoints from the cluster or a file, and would report for none."""
        table, process, now = self._heartbeat.table, self._bus.process, self._clock()
        living = {
            name
            for name in table.list_instances(process.service, now)
            if table.is_addressable(process.service, name, now)
        }
        route = token(pool)
        knowing = {name for name in living if table.is_addressable(process.service, name, now, route)}
        me = {process.instance}
        knows = not self._heartbeat.routes or route in self._heartbeat.routes
        return (knowing | me if knows else knowing - me) or living | me

    def pools(self) -> Iterator[tuple[str, tuple[WorkerView, ...]]]:
        """Every pool that is configured or has a worker, with its workers."""
        at = self._listening.listened_seconds(self._clock())
        for pool in self._pool_names():
            yield pool, self._verdicts.add_verdicts(pool, self._table.view_pool(pool, at))

    def configured(self, revision: Revision[None]) -> None:
        """A configuration was applied."""
        config = revision.config
        self._configured = tuple(config.pools)
        self._found = tuple(name for name, pool in config.pools.items() if pool.discovery in _FOUND)
        self._names = ModelNames(config, self._table.has_model)
        self._table.set_block_tokens({name: pool.block_tokens for name, pool in config.pools.items()})
        self._listed_engines = listed_engines(config)
        self._prices = {
            name: EnginePrice(hour_nanos=nanos(pool.cost.per_hour), output_weight=pool.cost.output_weight)
            for name, pool in config.pools.items()
            if pool.cost is not None
        }
        self.findings = {
            name: finding
            for name, finding in self.findings.items()
            if name in config.pools and config.pools[name].discovery == finding.kind
        }
        self._gather_engines()
        self._say_what_is_known()

    def found(self, pool: str, finding: EngineSource) -> None:
        """The endpoints of a pool were found, or could not be found."""
        self.findings[pool] = finding
        self._gather_engines()
        self._say_what_is_known()

    def _say_what_is_known(self) -> None:
        """Publish to the other collectors the pools whose endpoints this one knows."""
        unknown = {name for name in self._found if (finding := self.findings.get(name)) is None or not finding.answered}
        heartbeat = self._heartbeat
        known = tuple(token(name) for name in self._configured if name not in unknown)
        routes = (known or _NONE) if unknown else ()
        if routes != heartbeat.routes:
            heartbeat.routes = routes
            if heartbeat.beating:
                heartbeat.publish_state()

    def _gather_engines(self) -> None:
        found = {key: engine for finding in self.findings.values() for key, engine in finding.engines.items()}
        self.engines = {**self._listed_engines, **found}

    def registered(self, registration: WorkerRegistration) -> None:
        """A worker is registered, or still is."""
        joined = self._table.add_registration(registration, self._listening.listened_seconds(self._clock()))
        # Workers in the first listing were present before this process.
        if joined is not None and self._listed:
            self._changed(joined)

    def announced(self, announcement: WorkerAnnouncement) -> None:
        """A worker's agent announced it, with the faults that it knows of."""
        registration = announcement.registration
        self._table.set_findings(registration.pool, registration.worker, announcement.findings)

    def left(self, pool: str, worker: str) -> None:
        """A worker announced that it leaves, or has been silent for too long."""
        self._drain_changes.forget_worker((pool, worker))
        left = self._table.remove_registration(pool, worker, self._listening.listened_seconds(self._clock()))
        if left is not None:
            self._changed(left)

    def listed(self) -> None:
        """The listing of workers is complete."""
        self._listed = True

    def load(self, load: WorkerLoad) -> None:
        """A worker reported its load."""
        joined = self._table.receive_load(load, self._listening.listened_seconds(self._clock()))
        if joined is not None:
            self._changed(joined)
        if load.draining is not None or self._drain_changes.has_drains:
            self._note_draining(load)

    def order_drain(self, query: DrainQuery) -> DrainAnswer:
        """An operator orders an engine to drain, or to take requests again."""
        now = self._clock()
        known = tuple(self._table.known_workers(self._listening.listened_seconds(now)))
        instance = self._bus.process.instance
        if not self._listed:
            return DrainAnswer(instance=instance, refusal="the registered workers aren't known yet; try again")
        try:
            engines = self.drains.take_order(query, known, now)
        except DrainRefused as refused:
            return DrainAnswer(instance=instance, refusal=str(refused), known=refused.known)
        for each in engines:
            _log.warning(
                "drain_ordered", pool=each.pool, worker=each.worker, undo=query.undo, within_ms=query.within_ms,
                why=query.why, unserved=each.warning,
            )  # fmt: skip
        self._tell_agents(now)
        self.on_drain_ordered()
        return DrainAnswer(instance=instance, engines=engines)

    def _tell_agents(self, now: float) -> None:
        ordered = self.drains.ordered_workers()
        if not ordered:
            return
        at = self._listening.listened_seconds(now)
        found = ((key, self._table.find_known_worker(*key, at)) for key in ordered)
        workers = {key: known for key, known in found if known is not None}
        mine = [
            key
            for key, known in workers.items()
            if engine_key(known.registration) not in self.engines and self._owns(*key)
        ]
        for (pool, worker), order in self.drains.find_untold(workers, now, mine):
            self._announcer.publish_drain_order(pool, worker, order)

    def _note_draining(self, load: WorkerLoad) -> None:
        key = load.pool, load.worker
        if self._drain_changes.is_new(key, load.draining, self._clock()) and self._owns(*key):
            self._announcer.publish_draining(load)

    def judged(self, verdicts: WorkerVerdicts) -> None:
        """A scheduler's verdicts on the workers of a pool."""
        self._note(self._verdicts.receive_verdicts(verdicts, self._listening.listened_seconds(self._clock())))

    def _note(self, changes: list[JudgedWorkers]) -> None:
        for judged in changes:
            pace = self._paces.get(judged.pool)
            if pace is not None:
                pace.note_change(urgent=True)
            if self._owns(judged.pool, judged.verdict.worker):
                self._announcer.publish_verdict(judged)

    def completed(self, completed: ResponseCompleted) -> None:
        """A request ended."""
        names = self._names
        if names is None:
            return
        pool, model = names.find_served(completed)
        self._count(completed, pool, model)
        now = self._clock()
        for attempt in completed.attempts:
            if attempt.target is not None:
                self._tried(attempt, names.name_of(attempt.target), completed, now)
        for answer in completed.unused or ():
            unused = self._window(names.name_of(answer.target))
            if unused is not None:
                unused.count_unused(answer, completed.answers, now)
        # An answer from a stage shows nothing about the model.
        unasked = completed.target is None or completed.answered_by is not None
        window = None if unasked else self._window(model)
        if window is not None:
            window.add_completion(completed, now)

    def _tried(self, attempt: Attempt, model: str, completed: ResponseCompleted, now: float) -> None:
        """Record an attempt of a request: its limits, and its failure if another model served the request."""
        window = self._window(model)
        if window is not None:
            window.record_limit(attempt, completed.at_ms, now)
            if attempt.target != completed.target:
                window.count_failed(attempt, now)

    def _window(self, model: str) -> ModelWindow | None:
        """A model's statistics, about to change; None for a name that isn't configured."""
        if model == OTHER:
            return None
        found = self._windows.get(model)
        if found is None:
            found = self._windows[model] = ModelWindow(), ReportPace(STATISTICS_MIN_GAP_S, STATISTICS_MAX_GAP_S)
        self._unsaid.add(model)
        return found[0]

    def tick(self) -> None:
        """Find silent workers and publish what is due; called every `TICK_S`."""
        now = self._clock()
        self._listening.note_time(now, listening=self._bus.connected)
        at = self._listening.listened_seconds(now)
        self._note(self._verdicts.expire_verdicts(at))
        for silent in self._table.find_silent(at):
            if self._complete:
                self._changed(silent)
        if not self._complete:
            self._complete = self._listed and self._table.is_complete(at)
            if not self._complete:
                return
        self._tell_agents(now)
        self._tell_pools(now, at)
        self._tell_models(now)

    def _tell_pools(self, now: float, at: float) -> None:
        names = self._pool_names()
        for pool in names:
            pace = self._paces.get(pool)
            if pace is None:
                pace = self._paces[pool] = ReportPace(SNAPSHOT_GAP_S, TIMES.snapshot_s)
            changed, urgent = self._table.take_change(pool)
            if changed:
                pace.note_change(urgent=urgent)
            if pace.due_in(now) > 0:
                continue
            pace.note_report(now)
            finding = self.findings.get(pool)
            views = self._verdicts.add_verdicts(pool, self._table.view_pool(pool, at))
            unreached = self._table.find_unreached(pool, at)
            discovery = None if finding is None else finding.discovery_state
            self._announcer.publish_pool(pool, views, unreached, discovery, self._prices.get(pool))
        for gone in self._paces.keys() - set(names):
            del self._paces[gone]

    def _tell_models(self, now: float) -> None:
        for model in self._unsaid:
            self._windows[model][1].note_change()
        self._unsaid.clear()
        for model, (window, pace) in self._windows.items():
            if pace.due_in(now) <= 0:
                pace.note_report(now)
                self._announcer.publish_model(model, window, now)

    def _changed(self, change: Change) -> None:
        registration = change.registration
        self.changes[registration.pool, type(change).__name__.lower()] += 1
        if self._owns(registration.pool, registration.worker):
            self._announcer.publish_worker_change(change)

    def _owns(self, pool: str, worker: str) -> bool:
        return owner(pool, worker, self.collectors_of(pool)) == self._bus.process.instance

    def _pool_names(self) -> list[str]:
        return list(dict.fromkeys((*self._configured, *self._table.list_pools())))
