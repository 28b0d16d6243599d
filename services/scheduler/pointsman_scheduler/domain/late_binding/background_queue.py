"""Background requests: those that wait until an engine has capacity left, and those that run."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from pointsman_core.config.flow_control import Background
from pointsman_delay.pass_model import Rates
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_plugins.scheduling.worker import NEVER, Hold, Worker
from pointsman_scheduler.domain.background import (
    OpenRequestsOfEngine,
    PromptTime,
    choose_stopped,
    count_starting,
    read_engine,
)
from pointsman_scheduler.domain.late_binding.unbound import Because, Bound

LOOK_EVERY_MS: Final = 20.0
"""How often capacity is looked for, while requests wait or run."""
LEAVES_WITHIN_S: Final = 1.0
"""A request whose edge was asked to stop it counts as gone for this long; then it stays."""


class WaitingBackground(NamedTuple):
    """A request that waits. Times are milliseconds of the binder's clock."""

    request: ScheduleRequest
    since: float

    @property
    def tokens(self) -> float:
        """Tokens of its prompt and half of its answer, as its reservation will count them (`count_tokens`)."""
        facts = self.request.facts
        return facts.prompt_tokens + (facts.max_output_tokens or 0) / 2

    def leave_because(self, now: float, because: Because, worker: str = "") -> Bound:
        """It goes to this worker; without one it is refused."""
        self.request.bound = worker
        return Bound(self.request, worker, now - self.since, because)


class BackgroundView(NamedTuple):
    """The pool, as its background work sees it."""

    workers: Sequence[Worker]
    rule: Background
    rates: Rates | None
    """None while the times of passes aren't known well enough."""
    budget: float
    """Prompt tokens of a pass."""
    waits_ms: float
    """How long a request waits; then it is refused."""
    replicas: int
    """Schedulers of the pool: each spends its share of the time for prompts."""
    awaited: frozenset[int]
    """Rows of the engines that other requests wait for."""


class BackgroundQueue:
    """Knows no clock."""

    def __init__(self) -> None:
        self._waiting: dict[RequestKey, WaitingBackground] = {}
        self._times: dict[str, PromptTime] = {}
        self._look_at = 0.0
        self.running: dict[RequestKey, float] = {}
        """Requests that this scheduler sent, and when their edges were asked to stop them, in seconds; NEVER for those
        that weren't."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add_waiting(self, request: ScheduleRequest, now: float) -> None:
        """Let a request wait. One that waits already keeps its place."""
        self._waiting.setdefault(request.key, WaitingBackground(request, now))

    def remove_waiting(self, request: RequestKey) -> WaitingBackground | None:
        """Remove a request; None when it doesn't wait."""
        return self._waiting.pop(request, None)

    def look_at(self, now: float) -> float:
        """When to look next."""
        return max(now, self._look_at)

    def bind_next(
        self, now: float, view: BackgroundView, may_serve: Callable[[Worker, str], bool], *, full: bool
    ) -> list[Bound]:
        """The requests that leave now. `may_serve`: whether a worker serves this model or adapter; `full`: the pool has
        no room for other requests, either."""
        waiting = self._waiting
        if not waiting or now < self._look_at:
            return []
        self._look_at = now + LOOK_EVERY_MS
        bound = [
            waiting.pop(key).leave_because(now, Because.NO_CAPACITY)
            for key, each in tuple(waiting.items())
            if now - each.since >= view.waits_ms
        ]
        if full or not waiting:
            return bound
        works = [read_engine(each, view.rates, view.budget, now / 1000.0) for each in view.workers]
        ordered = sorted(waiting.values(), key=lambda each: (-each.request.facts.priority, each.since))
        for row in sorted(range(len(works)), key=lambda row: (works[row].others, works[row].background, row)):
            worker, work = view.workers[row], works[row]
            if row in view.awaited or work.prompts or work.others_prompts:
                continue
            served = (each for each in ordered if may_serve(worker, each.request.lora or each.request.model))
            for each in self._choose_starting([*islice(served, view.rule.prompts)], now, view, worker, work):
                ordered.remove(each)
                del waiting[each.request.key]
                self.running[each.request.key] = NEVER
                bound.append(each.leave_because(now, Because.CAPACITY, worker.name))
            if not ordered:
                break
        return bound

    def _choose_starting(
        self,
        served: list[WaitingBackground],
        now: float,
        view: BackgroundView,
        worker: Worker,
        work: OpenRequestsOfEngine,
    ) -> list[WaitingBackground]:
        """The first of these requests, which go to the worker together now."""
        rule, rates = view.rule, view.rates
        chosen = served[: count_starting(rule, rates, view.budget, work, [each.tokens for each in served])]
        if chosen and work.others and rates is not None:
            time = self._times.setdefault(worker.name, PromptTime(now))
            cost_ms = rates.passes_ms(sum([each.request.facts.prompt_tokens for each in chosen]), view.budget)
            if not time.may_spend(cost_ms, rule.prompt_time / view.replicas, now):
                return []
            time.spend(cost_ms)
        return chosen

    def find_stopped(self, view: BackgroundView, find: Callable[[RequestKey], Hold | None], now: float) -> list[Hold]:
        """The running requests of this scheduler that leave now; each is named once. `find`: a request's reservation;
        `now` in seconds."""
        running = self.running
        held = {key: found for key in running if (found := find(key)) is not None}
        for key in running.keys() - held.keys():
            del running[key]
        leaving = {key for key, asked in running.items() if now - asked < LEAVES_WITHIN_S}
        stopped: list[Hold] = []
        for worker in {each.worker.name: each.worker for each in held.values()}.values():
            work = read_engine(worker, view.rates, view.budget, now, leaving)
            own = [hold for hold in worker.holds.values() if running.get(hold.request) == NEVER]
            stopped += choose_stopped(view.rule, view.rates, view.budget, work, own)
        for each in stopped:
            running[each.request] = now
        return stopped
