"""All state of one scheduler about one pool, and the decision.

The service and the simulator drive this same object. It does no I/O: events come in through its methods, with the
monotonic time at which they were received; a decision goes out as a value.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.refusal import Refusal
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.dice import Dice
from pointsman_plugins.scheduling.fleet import MATCHED, Fleet
from pointsman_plugins.scheduling.points import MATCHED_TOKENS
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import NO_ENDPOINTS, UNKNOWN_WORKER, Run, Selection
from pointsman_plugins.scheduling.worker import Hold, Worker
from pointsman_scheduler.domain.cache_room import FleetRoom
from pointsman_scheduler.domain.earlier_turns import count_earlier_turns
from pointsman_scheduler.domain.giving_way import bind_background, find_stopped, wait_or_refuse
from pointsman_scheduler.domain.kv_changes import apply_told
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.late_binding import Binder, Bound, LateBindingPolicy, NeedsRoom
from pointsman_scheduler.domain.ledger import Ledger
from pointsman_scheduler.domain.outcome import Outcome, Postponed, Refused, Scheduled, Sight
from pointsman_scheduler.domain.outlier_detection import Overdue
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.domain.reasons import counted, describe_age
from pointsman_scheduler.domain.reserving import reserve
from pointsman_scheduler.domain.selecting import prefer_worker, select_endpoints, select_with_room

WAIT_FOR_STREAM_S: Final = 2.0
"""How long the trial of a worker that doesn't answer waits for a request with a stream."""


_CHANGING: Final = Refusal(
    503, "Engines have just come or left; ask again.", type="server_error", code="engines_changed", retry_after_s=1.0
)


class _Choice(NamedTuple):
    """The endpoints for a request, and how they were found."""

    selection: Selection
    runs: list[Run]
    sight: Sight
    reached: Floats
    """Prompt tokens that each worker needn't compute."""
    sticks: bool
    """Whether the request's session stays with its engine."""
    needed: NeedsRoom | None
    """Set for a request that waits for room."""


class PoolScheduler:
    """One pool as one scheduler sees it. `scheduler` is the instance that its own reservations are made by."""

    def __init__(self, pool: str, scheduler: str, index: PrefixIndex) -> None:
        self.pool: Final = pool
        self.scheduler: Final = scheduler
        self.fleet: Final = Fleet()
        self.index: Final = index
        self.books: Final = Ledger(self.fleet, index)
        self.outliers: Final = self.books.outliers
        self.overdue: list[Overdue] = []
        """Requests that should leave their workers, as the last sweep found them."""
        self._unreached: dict[str, tuple[str, float]] = {}
        """Engines that the pool's configuration names and that have never answered: the reason, and when it was last
        reported."""
        self.block_tokens = 64
        """Tokens in a block of the prefix index."""
        self._index_epoch = 0
        self.binder: Final = Binder()
        self.policies: tuple[Policy, ...] = ()
        """Those that may still decide, the newest last."""
        self._late: LateBindingPolicy | None = None
        """The late binding of the newest policy."""

    def use(self, policies: Iterable[Policy]) -> None:
        """Set the policies whose plugins observe responses: those that may still decide."""
        self.policies = live = tuple(policies)
        self.books.set_observers(observer for policy in live for observer in policy.observers)
        self._late = live[-1].late_binding if live else None
        self.outliers.patience.forecast = live[-1].forecast if live else None

    def measure(self, block_tokens: int) -> None:
        """Set the number of tokens in one block of the prefix index."""
        if block_tokens != self.block_tokens:
            self.block_tokens = block_tokens
            for worker in self.fleet:
                self.index.describe(worker.life, self._blocks_of(worker))

    def register(self, registration: WorkerRegistration, now: float) -> None:
        """A worker joined, renewed its registration, or restarted. Requests of its former life are dropped."""
        self._unreached.pop(registration.worker, None)
        former = self.fleet.register(registration)
        if former is not None:
            self.books.drop_requests_on(former, now)
        worker = self.fleet.find(registration.worker)
        if worker is not None:
            if worker.life < 0:
                worker.life = self.index.join(self._blocks_of(worker))
            else:
                self.index.describe(worker.life, self._blocks_of(worker))

    def remove(self, worker: str, now: float) -> None:
        """The worker's registration lapsed or was withdrawn."""
        self.fleet.remove(worker, now)

    def hear(self, load: WorkerLoad, now: float) -> bool:
        """Take a load report. False when its worker, or this life of it, isn't registered."""
        if not load.boot_id:
            self._unreached[load.worker] = load.reason, now
        return self.fleet.hear(load, now) is not None

    def hear_kv(self, worker: str, boot_id: str, told: Told, complete: bool, now: float) -> None:
        """Take what an agent told about its engine's KV cache. `complete`: nothing of the cache's history is missing
        now. No-op for an unknown worker; of another life, only `complete` counts."""
        found = self.fleet.find(worker)
        if found is None:
            return
        if found.registration.boot_id == boot_id:
            apply_told(self.index, found.life, told, now)
        found.kv_told = boot_id if complete else ""

    def sweep(self, now: float, slack_s: float = 0.0) -> bool:
        """Look for requests that wait too long, and forget expired state, for some milliseconds at most. Call it about
        once a second, and again while it returns True: more is left. `slack_s`: how much longer than usual everything
        may take now."""
        for name in [name for name, (_, told) in self._unreached.items() if now - told > TIMES.worker_silent_s]:
            del self._unreached[name]
        for worker in self.fleet.sweep(now):
            self.books.drop_requests_on(worker, now)
        self.overdue = self.outliers.overdue(self.books, now, slack_s)
        for policy in self.policies[-1:]:
            if policy.room is not None:
                policy.room.room.sweep_room([worker.life for worker in self.fleet], now)
        return self.index.sweep(now)

    def _blocks_of(self, worker: Worker) -> int | None:
        """How many of the index's blocks fit into the worker's cache; None when unknown."""
        return worker.capacity_tokens // self.block_tokens or None

    def decide(self, request: ScheduleRequest, now: float, seed: int, policy: Policy) -> Outcome:
        """Choose endpoints and reserve the choice at once. `now` is monotonic; `seed` settles ties and random
        choices."""
        if request.facts.decision > 1:
            self.books.end_earlier_decisions(request, now)
        choice = self._choose(request, now, seed, policy)
        if not isinstance(choice, _Choice):
            return choice
        fleet, selection, sticks = self.fleet, choice.selection, choice.sticks
        former = self.books.find_reservation((request.edge, request.request_id))
        held = former is not None and self._honour(former, selection)
        if choice.needed is not None:
            self.binder.room_queue.add_waiting(choice.needed, self.scheduler)
            return Postponed(request, fleet.names[selection.primary.chosen[0]])
        late = None if sticks else policy.late_binding
        trial = ""
        if fleet.ejected and not held and not sticks:
            trial = self._trial(request, selection, now)
            if trial:
                late = None
        if not held:
            if request.bound is None:
                # The end of a pass is heard by first tokens, which an answer that isn't streamed doesn't tell.
                if late and request.facts.stream and self._waits(request, selection, choice.reached, now, late):
                    return Postponed(request, fleet.names[selection.primary.chosen[0]])
            elif request.bound and not sticks:
                prefer_worker(selection.primary, request.bound, fleet)
        scheduled = self._describe(request, choice, seed)
        scheduled.held, scheduled.trial = held, trial
        for each in policy.pre_requests:
            scheduled.headers += each.prepare(request, selection)
        scheduled.holds = self._reserve(request, selection, choice.sight, former)
        return scheduled

    def _reserve(self, request: ScheduleRequest, selection: Selection, sight: Sight, former: Hold | None) -> list[Hold]:
        return reserve(self.books, request, selection, sight, former=former, scheduler=self.scheduler)

    def foresee(
        self, request: ScheduleRequest, now: float, seed: int, policy: Policy
    ) -> tuple[Scheduled | Refused, bool]:
        """What `decide` would choose for a dry run, with nothing reserved and nothing learnt; and whether the request
        would wait for room."""
        self.fleet.refresh(now)
        if len(self.binder) and not self.laid_out:
            # To look at the new engines would bind those that wait otherwise. They go in a moment.
            return Refused(_CHANGING, []), False
        choice = self._choose(request, now, seed, policy)
        if isinstance(choice, Refused):
            return choice, False
        assert not isinstance(choice, Postponed)  # noqa: S101 - only real requests are put among the waiting ones
        return self._describe(request, choice, seed), choice.needed is not None

    def _choose(
        self, request: ScheduleRequest, now: float, seed: int, policy: Policy
    ) -> "_Choice | Postponed | Refused":
        """Choose endpoints. Only background requests are put anywhere by it: they wait."""
        fleet = self.fleet
        fleet.refresh(now)
        if self._index_epoch != fleet.epoch:
            self.index.lay_out([worker.life for worker in fleet.workers])
            self._index_epoch = fleet.epoch
        if not fleet.workers:
            return Refused(NO_ENDPOINTS.refusal(self._why_empty(now)), [])
        everyone = allowed = Candidates(fleet, now, Dice(seed))
        if request.facts.workers is not None:
            allowed = everyone.keep(fleet.match_names(request.facts.workers))
            if not allowed.size:
                names = ", ".join(request.facts.workers)
                return Refused(UNKNOWN_WORKER.refusal(f"Pool {self.pool!r} has no worker {names}."), [])
        if request.facts.priority <= BATCH_PRIORITY and not request.facts.dry_run:
            outcome = wait_or_refuse(request, policy, self.binder, self.books, now)
            if outcome is not None:
                return outcome
        figures = fleet.figures()
        matched = reached = self.index.match(request.blocks, request.facts.block_tokens, figures[MATCHED])
        if request.facts.continued_tokens is not None:
            count_earlier_turns(request.facts, allowed, matched)
        request.fetched = None
        if self.index.reach:
            reached = self._reach_below(request, matched)
        runs: list[Run] = []
        needed: NeedsRoom | None = None
        try:
            stays = None if policy.sticky is None else policy.sticky.stay(request, everyone)
            if stays is None:
                request.put(MATCHED_TOKENS, matched)
                for producer in policy.producers:
                    producer.produce(request, everyone)
                # A proxy's choice is sent, and so is a request that goes to the engine that it has waited for.
                room = policy.room if allowed is everyone and not request.bound else None
                if room is None or not room.room.may_lack(request.facts.prompt_tokens):
                    selection = select_endpoints(request, policy, everyone, allowed, runs)
                else:
                    again = request.bound is not None or self.books.find_reservation(request.key) is not None
                    seen = room.see_room(fleet, now, self._match_blocks, may_wait=not again)
                    selection, needed = select_with_room(request, policy, everyone, runs, seen)
            else:
                runs.append(stays)
                selection = Selection(stays)
        except Refusal as refusal:
            return Refused(refusal, runs, Sight(fleet.workers, fleet.names, now, figures, fleet.opaque))
        sight = Sight(fleet.workers, fleet.names, now, figures, fleet.opaque)
        return _Choice(
            selection=selection, runs=runs, sight=sight, reached=reached, sticks=stays is not None, needed=needed
        )

    def _describe(self, request: ScheduleRequest, choice: "_Choice", seed: int) -> Scheduled:
        """The decision, before anything follows from it."""
        selection, sight = choice.selection, choice.sight
        primary, now = selection.primary, sight.now
        endpoints = [sight.workers[row] for row in primary.chosen]
        worker = endpoints[0]
        reasons = [*primary.degraded, *selection.degraded]
        if now - worker.heard > TIMES.worker_silent_s:
            reasons.append(describe_age(worker, now))
        elif worker.opaque and (why := worker.describe_unknown_load()):
            reasons.append(f"the load of {worker.name} is unknown, own counts stand for it: {why}")
        prefix = ""
        if len(request.blocks):
            prefix = "precise" if request.facts.blocks_precise and worker.tells else "approximate"
        return Scheduled(
            endpoints=endpoints,
            selection=selection,
            runs=choice.runs,
            sight=sight,
            headers=[],
            holds=[],
            cached_tokens=min(request.facts.prompt_tokens, int(choice.reached.item(primary.chosen[0]))),
            prefix=prefix,
            held=False,
            seed=seed,
            reasons=reasons,
            fetched=request.fetched,
        )

    @property
    def laid_out(self) -> bool:
        """Whether the index answers for the workers that are here now: a decision was made since one came or left."""
        return self._index_epoch == self.fleet.epoch

    def bind(self, now: float) -> list[Bound]:
        """The requests whose wait for an engine is over. The caller passes each to `decide` before the next call."""
        if not len(self.binder):
            return []
        fleet = self.fleet
        fleet.refresh(now)
        # Index and predictions are laid out by the last decision's fleet: after a change of it, those who wait go.
        names = fleet.names if self.laid_out else ()
        bound = self.binder.bind(now * 1000.0, names, self._late, self._matched)
        bound = bound or self.binder.room_queue.bind_next(now * 1000.0, self.scheduler, self._seen_room(now))
        return bound or bind_background(fleet, self.binder, self.policies[-1] if self.policies else None, now)

    def find_stopped(self, now: float) -> list[Hold]:
        """The background requests of this scheduler that leave their engines now; each is named once."""
        return find_stopped(self.fleet, self.binder, self.books, self.policies[-1] if self.policies else None, now)

    def _seen_room(self, now: float) -> FleetRoom | None:
        """The room of the engines; None where no request waits for it any more."""
        policy = self.policies[-1].room if self.policies else None
        if policy is None or not self.laid_out:
            return None
        return policy.see_room(self.fleet, now, self._match_blocks)

    def look_at(self, now: float) -> float | None:
        """When to call `bind` and `find_stopped` even without new reports; None while there is no need."""
        at = self.binder.look_at(now * 1000.0)
        return None if at is None else at / 1000.0

    def _reach_below(self, request: ScheduleRequest, matched: Floats) -> Floats:
        """Prompt tokens that each worker needn't compute. Those that it would fetch become the request's."""
        request.fetched = self.index.match_below(request.blocks, request.facts.block_tokens, matched)
        return request.reached(matched)

    def _matched(self, request: ScheduleRequest) -> Floats:
        matched = self.index.match(request.blocks, request.facts.block_tokens)
        return self._reach_below(request, matched) if self.index.reach else matched

    def _match_blocks(self, request: ScheduleRequest) -> Floats:
        return self.index.match(request.blocks, request.facts.block_tokens)

    def _trial(self, request: ScheduleRequest, selection: Selection, now: float) -> str:
        """Send the request to an ejected worker where a trial of it is due, and there are fallbacks. Returns why that
        is ejected; empty without a trial."""
        primary = selection.primary
        if request.bound or request.attempt > 1 or request.facts.workers is not None or selection.legs:
            return ""
        worker = self.fleet.trial(now)
        if worker is None or len(primary.chosen) < 2 or len(self.fleet.ejected) == len(self.fleet):
            return ""
        # Its request may wait until it is moved: a first byte is missed sooner than a whole answer.
        if worker.standing.hung and not request.facts.stream and now - worker.standing.retry_at < WAIT_FOR_STREAM_S:
            return ""
        prefer_worker(primary, worker.name, self.fleet)
        return worker.standing.reason if primary.chosen[0] == worker.row else ""

    def _waits(
        self, request: ScheduleRequest, selection: Selection, matched: Floats, now: float, late: LateBindingPolicy
    ) -> bool:
        """Whether the request waits until the best engine takes it up."""
        # These can't wait: another adapter blocks an engine regardless of its prompts, and a leg is sent together with
        # the answer's.
        if request.lora is not None or request.attempt > 1 or selection.legs or request.facts.workers is not None:
            return False
        binder, names, primary = self.binder, self.fleet.names, selection.primary
        if not binder.counts(names):
            return False
        now_ms, row = now * 1000.0, primary.chosen[0]
        if not binder.holds(row, request.facts.prompt_tokens - matched.item(row), now_ms, late):
            return False
        rows = primary.candidates.rows
        binder.put(
            request=request,
            now=now_ms,
            matched=matched,
            rows=None if rows is None else rows.tolist(),
            row=row,
            names=names,
            policy=late,
        )
        return True

    def known_bad(self, now: float) -> bool:
        """Whether the pool's only endpoints are those that its configuration names and that have never answered."""
        return not len(self.fleet) and any(now - told <= TIMES.worker_silent_s for _, told in self._unreached.values())

    def _why_empty(self, now: float) -> str:
        reasons = [why for why, told in self._unreached.values() if now - told <= TIMES.worker_silent_s]
        if not reasons:
            return f"Pool {self.pool!r} has no endpoint; try again shortly."
        return f"No endpoint of pool {self.pool!r} answers ({counted(reasons)})."

    def _honour(self, hold: Hold, selection: Selection) -> bool:
        """Keep a reserved request on its worker, if that worker may still serve it."""
        if not hold.worker.present:
            return False
        run, row = selection.primary, hold.worker.row
        if row not in run.chosen:
            if not np.any(run.candidates.indices() == row):
                return False
            run.chosen.pop()
        else:
            run.chosen.remove(row)
        run.chosen.insert(0, row)
        selection.rank = hold.change.rank
        return True
