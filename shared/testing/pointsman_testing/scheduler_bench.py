"""A pool without a bus and with a stopped clock, for tests of policies and of plugins, here and elsewhere."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.message import Blob, read_fields
from pointsman_contracts.response import AttemptFailed
from pointsman_contracts.scheduling import ProfileRun, ReservationChange
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.config import SchedulingPolicy
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.outcome import Postponed, Refused, Scheduled
from pointsman_scheduler.domain.policy import Instances, Policy, compile_policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.scheduled_event import CANDIDATES_SHOWN, explain, reason

BLOCK_TOKENS: Final = 64
LIFE: Final = "life-1"


def explained(outcome: Scheduled, shown: int = CANDIDATES_SHOWN) -> tuple[tuple[ProfileRun, ...], str]:
    """The explanation as readers of the event get it."""
    return explain(outcome, shown), reason(outcome)


class Bench:
    """One scheduler's view of one pool. `now` moves only when the test moves it."""

    def __init__(self, settings: Mapping[str, object] | None = None, scheduler: str = "scheduler-1") -> None:
        """`settings`: a scheduling policy as written in the configuration file."""
        self.now: float = 1000.0
        self.pool: Final = PoolScheduler("llama", scheduler, PrefixIndex(max_bytes=2**26))
        self.policy = self.use(settings or {})
        self._numbers = 0

    def use(self, settings: Mapping[str, object]) -> Policy:
        """Decide by another policy from now on."""
        written = SchedulingPolicy.model_validate(dict(settings))
        self.policy = compile_policy("default", written, registries(), Instances())
        self.pool.use([self.policy])
        return self.policy

    def register(self, name: str, **facts: object) -> WorkerRegistration:
        """A worker registers, with these facts."""
        fields: dict[str, object] = {
            "worker": name,
            "pool": "llama",
            "url": f"http://{name}:8000",
            "boot_id": LIFE,
            "agent": f"agent-{name}",
            "version": "1",
            "registered_ms": 0,
            "block_tokens": BLOCK_TOKENS,
            "kv_blocks": 1024,
        }
        registration = read_fields(WorkerRegistration, fields | facts)
        self.pool.register(registration, self.now)
        return registration

    def join(self, *names: str, **facts: object) -> None:
        """Workers register and report that they are idle."""
        for name in names:
            registration = self.register(name, **facts)
            self.hear(name, boot_id=registration.boot_id)

    def hear(self, name: str, **load: object) -> bool:
        """Take a load report of a worker; returns whether it counts."""
        fields: dict[str, object] = {"worker": name, "pool": "llama", "boot_id": LIFE, "sequence": 1, "at_ms": 0}
        return self.pool.hear(read_fields(WorkerLoad, fields | load), self.now)

    def request(self, **facts: object) -> ScheduleRequest:
        """A request of 100 tokens, too few to remember."""
        self._numbers += 1
        name = f"{self.pool.scheduler}-request-{self._numbers}"
        fields: dict[str, object] = {"request_id": name, "edge": "edge-1"}
        own: dict[str, object] = {"api": "chat.completions", "stream": True, "prompt_tokens": 100}
        for fact, value in facts.items():
            (fields if fact in ScheduleRequest.__struct_fields__ else own)[fact] = value
        return ScheduleRequest(
            **fields,  # pyright: ignore[reportArgumentType] - named by the test
            facts=RequestFacts(**own),  # pyright: ignore[reportArgumentType] - as above
        )

    def prompt(self, family: int, blocks: int, own_blocks: int = 0, **facts: object) -> ScheduleRequest:
        """A request with `blocks` blocks that it shares with its family, and `own_blocks` of its own."""
        shared = np.random.default_rng(family).integers(1, 2**63, size=blocks, dtype=np.uint64)
        own = np.random.default_rng((family, self._numbers)).integers(1, 2**63, size=own_blocks, dtype=np.uint64)
        tokens = (blocks + own_blocks) * BLOCK_TOKENS
        return self.request(**({"blocks": np.concatenate((shared, own)), "prompt_tokens": tokens} | facts))

    def decide(self, request: ScheduleRequest | None = None, seed: int = 1) -> Scheduled:
        """The decision; a request that would wait for its engine doesn't. AssertionError when there is none."""
        request = request or self.request()
        outcome = self.pool.decide(request, self.now, seed, self.policy)
        if isinstance(outcome, Postponed):
            self.pool.binder.leave_now(request.key, self.now * 1000.0)
            outcome = self.pool.decide(request, self.now, seed, self.policy)
        if isinstance(outcome, Postponed):
            raise AssertionError(f"waits for {outcome.worker}")  # noqa: TRY004 - an expectation, not an argument
        if isinstance(outcome, Refused):
            raise AssertionError(outcome.refusal.message)  # noqa: TRY004 - an expectation, not an argument
        return outcome

    def refused(self, request: ScheduleRequest | None = None) -> Refused:
        """The refusal. AssertionError when there is none."""
        outcome = self.pool.decide(request or self.request(), self.now, 1, self.policy)
        if isinstance(outcome, Postponed):
            raise AssertionError(f"waits for {outcome.worker}")  # noqa: TRY004 - as above
        if isinstance(outcome, Scheduled):
            raise AssertionError(f"went to {outcome.endpoints[0].name}")  # noqa: TRY004 - as above
        return outcome

    def chosen(self, request: ScheduleRequest | None = None, seed: int = 1) -> str:
        """Name of the first endpoint."""
        return self.decide(request, seed).endpoints[0].name

    def survivors(self, request: ScheduleRequest | None = None) -> set[str]:
        """The workers that passed the filters."""
        return {worker.name for worker in self.decide(request).selection.primary.candidates.workers()}

    def scores(self, request: ScheduleRequest | None = None) -> dict[str, float]:
        """The weighted sum of each candidate."""
        run = self.decide(request).selection.primary
        totals: list[float] = [] if run.scores is None else list(run.scores[-1])
        return {worker.name: total for worker, total in zip(run.candidates.workers(), totals, strict=True)}

    def place(self, request: ScheduleRequest, worker: str, scheduler: str = "scheduler-2") -> bool:
        """Another scheduler sent a request to a worker; returns whether it counts."""
        change = ReservationChange(
            op="reserve",
            request_id=request.request_id,
            worker=worker,
            boot_id=LIFE,
            edge=request.edge,
            prompt_tokens=request.facts.prompt_tokens,
            uncached_tokens=request.facts.prompt_tokens,
            block_tokens=request.facts.block_tokens,
            blocks=Blob(request.blocks.tobytes()),
            lora=request.lora,
            session=request.facts.session,
        )
        return self.pool.books.apply(change, scheduler, self.now)

    def serve(self, request: ScheduleRequest | None = None, seed: int = 1) -> str:
        """Decide, and let the answer begin and end; returns the name of the worker."""
        request = request or self.request()
        worker = self.chosen(request, seed)
        self.pool.books.started(request.key, worker, 5.0, self.now)
        self.pool.books.completed(request.key, self.now, ok=True)
        return worker

    def fail(self, request_id: str, worker: str, next_worker: str | None = None, **facts: object) -> None:
        """An edge couldn't connect to a worker, unless `facts` say otherwise."""
        fields: dict[str, object] = {
            "request_id": request_id,
            "source": "edge-1",
            "sequence": 1,
            "at_ms": 0,
            "pool": "llama",
            "worker": worker,
            "outcome": "refused",
            "next_worker": next_worker,
        }
        self.pool.books.failed(read_fields(AttemptFailed, fields | facts), self.now)
