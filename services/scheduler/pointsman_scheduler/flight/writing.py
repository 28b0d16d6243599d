"""Makes records of a tap's notes."""

import math
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import numpy as np

from pointsman_contracts.peers import AnyChange
from pointsman_contracts.response import AttemptFailed
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_flight import records
from pointsman_flight.records import LoggedRequest, Record, RecordedOutcome
from pointsman_flight.salt import Salt
from pointsman_plugins.plugin import Plugin
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_plugins.scheduling.run import Run
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.late_binding import Bound, PeerRequest
from pointsman_scheduler.domain.outcome import Outcome, Postponed, Refused, Scheduled, Sight
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index.life import Dump
from pointsman_scheduler.flight.freezing import ranks_of

Note = tuple[str, *tuple[Any, ...]]
"""The name of a method that was called, then what its record is made of."""
_NAME: Final = attrgetter("name")


class RecordMaker:
    """The records of one log. Policies keep their numbers from one segment to the next."""

    def __init__(self, salt: Salt, hash_ids: bool, headers: frozenset[str]) -> None:
        """`headers`: names of the request headers that are recorded besides those that built-in plugins read."""
        self.policies: Final[dict[int, Policy]] = {}
        """The policies by number: the latest of those with the same settings."""
        self.headers = headers
        self._salt: Final = salt
        self._id: Final[Callable[[str], str]] = salt.id if hash_ids else str
        self._numbers: Final[dict[tuple[str, str], int]] = {}
        self._numbered: dict[Policy, int] = {}
        self._ranks = 1
        """Least common multiple of the data-parallel sizes of all workers so far."""
        self.defined: list[Record] = []
        """Policies that the log doesn't know yet; to be recorded before the next record."""
        self.blocks: Final[list[bytes]] = []
        """The blocks in the record that was made last, in their order. They have their own names yet."""
        self.makers: Final[Mapping[str, Callable[..., Record]]] = {
            "use": self._used,
            "measure": records.BlocksMeasured,
            "register": self._registered,
            "remove": records.WorkerRemoved,
            "hear": self._heard,
            "hear_kv": self._heard_kv,
            "sweep": records.Swept,
            "decide": self._decided,
            "bind": self._bound,
            "started": self._started,
            "failed": self._failed,
            "completed": self._completed,
            "apply": self._applied,
            "peer": self._peer,
            "heard": self._peer_heard,
            "cancel": self._cancelled,
            "leave_now": self._left,
            "dump": records.IndexDumped,
            "load": self._loaded,
        }
        """For each method, what makes the record of its notes."""

    def number_of(self, policy: Policy) -> int:
        """The number that the log gives the policy. Policies of the same settings share the state of their plugins, and
        a number."""
        number = self._numbered.get(policy)
        if number is None:
            number = self._numbers.setdefault((policy.name, policy.settings), len(self._numbers) + 1)
            if number not in self.policies:
                self.defined.append(records.PolicyDefined(number, policy.name, policy.hash, policy.settings))
                self.headers |= headers_read(policy)
            self.policies[number] = policy
            self._numbered = {each: found for each, found in self._numbered.items() if self.policies[found] is each}
            self._numbered[policy] = number
        return number

    def know(self, pool: PoolScheduler) -> None:
        """Take note of the workers that registered before the log began."""
        self._ranks = math.lcm(self._ranks, ranks_of(pool.fleet))

    def definitions(self) -> list[Record]:
        """Every policy so far: for the beginning of a segment."""
        return [
            records.PolicyDefined(number, policy.name, policy.hash, policy.settings)
            for number, policy in list(self.policies.items())  # the event loop may add one meanwhile
        ]

    def taken(self) -> list[Record]:
        """The policies of `defined`, which the log knows now."""
        defined, self.defined = self.defined, []
        return defined

    def _with(self, blocks: bytes) -> bytes:
        plain = bytes(blocks)  # a peer's are of a class of their own
        self.blocks.append(plain)
        return plain

    def _used(self, policies: tuple[Policy, ...]) -> Record:
        return records.PoliciesUsed(tuple([self.number_of(policy) for policy in policies]))

    def _registered(self, at: float, registration: WorkerRegistration) -> Record:
        self._ranks = math.lcm(self._ranks, max(1, registration.data_parallel_size))
        return records.WorkerRegistered(at, registration.model_dump_json().encode())

    def _heard(self, at: float, load: WorkerLoad, counted: bool) -> Record:
        return records.LoadReported(
            at, load.worker, load.boot_id, load.sequence, load.at_ms, load.age_ms, load.state, load.reason,
            load.running, load.waiting, load.kv_usage, load.running_loras, load.waiting_loras, load.max_loras, counted,
        )  # fmt: skip

    def _heard_kv(self, at: float, worker: str, boot_id: str, told: Told, complete: bool) -> Record:
        everything = None if told.everything is None else self._with(told.everything)
        changes = tuple([(change.op, self._with(change.blocks)) for change in told.changes])
        return records.KvTold(at, worker, boot_id, everything, changes, complete)

    def _decided(
        self,
        at: float,
        seed: int,
        policy: Policy,
        request: ScheduleRequest,
        bound: str | None,
        outcome: Outcome | Exception,
    ) -> Record:
        number = self._numbered.get(policy) or self.number_of(policy)
        edge, request_id = request.edge, self._id(request.request_id)
        facts = self._facts(request, request_id) if bound is None else None
        return records.Decided(at, seed, number, edge, request_id, facts, bound, request.queued_s, recorded(outcome))

    def _facts(self, request: ScheduleRequest, request_id: str) -> LoggedRequest:
        headers, kept = request.headers, self.headers
        session, fairness = request.session, request.fairness_id
        blocks = request.blocks.tobytes()
        self.blocks.append(blocks)
        return LoggedRequest(
            request.edge,
            request_id,
            request.model,
            request.lora,
            request.prompt_tokens,
            request.tokens_exact,
            request.max_output_tokens,
            request.stream,
            blocks,
            request.block_tokens,
            request.blocks_precise,
            (request.spread(self._ranks) or 0) if self._ranks > 1 else 0,
            {name: headers[name] for name in kept if name in headers} if kept else {},
            None if session is None else self._id(session),
            request.priority,
            self._id(fairness) if fairness else "",
            request.body_bytes,
            request.slo_ttft_ms,
            request.slo_itl_ms,
            request.subset,
            request.workers,
            request.features,
            request.attempt,
        )

    def _bound(self, at: float, bound: tuple[Bound, ...]) -> Record:
        return records.BindAsked(
            at, tuple([(*self._key(each.request.key), each.worker, each.because) for each in bound])
        )

    def _key(self, request: RequestKey) -> RequestKey:
        return request[0], self._id(request[1])

    def _started(self, at: float, request: RequestKey, worker: str, ttft_ms: float) -> Record:
        return records.AnswerStarted(at, request[0], self._id(request[1]), worker, ttft_ms)

    def _failed(self, at: float, event: AttemptFailed) -> Record:
        return records.AttemptLost(
            at, event.source, self._id(event.request_id), event.worker, event.boot_id, event.outcome, event.status,
            event.next_worker,
        )  # fmt: skip

    def _completed(
        self,
        at: float,
        request: RequestKey,
        ok: bool,
        output_tokens: int | None,
        duration_ms: float | None,
        worker: str | None,
        told_ms: int,
    ) -> Record:
        edge, request_id = request[0], self._id(request[1])
        return records.RequestCompleted(at, edge, request_id, ok, output_tokens, duration_ms, worker, told_ms)

    def _applied(self, at: float, change: AnyChange, scheduler: str, counted: bool) -> Record:
        return records.PeerChanged(
            at, scheduler, change.op, self._id(change.request_id), change.worker, change.boot_id, change.edge,
            change.leg, change.attempt, change.lora, None if change.session is None else self._id(change.session),
            change.rank, change.prompt_tokens, change.uncached_tokens, change.output_tokens, change.block_tokens,
            self._with(change.blocks), change.blocks_precise, change.streamed, counted,
        )  # fmt: skip

    def _peer(self, at_ms: float, scheduler: str, requests: tuple[PeerRequest, ...]) -> Record:
        renamed = [
            each._replace(request_id=self._id(each.request_id), blocks=self._with(each.blocks)) for each in requests
        ]
        return records.PeerWaiting(at_ms, scheduler, tuple(renamed))

    def _peer_heard(self, at_ms: float, scheduler: str) -> Record:
        return records.PeerWaiting(at_ms, scheduler, None)

    def _cancelled(self, request: RequestKey) -> Record:
        return records.WaitEnded(*self._key(request), None)

    def _left(self, at_ms: float, request: RequestKey) -> Record:
        return records.WaitEnded(*self._key(request), at_ms)

    def _loaded(self, at: float, life: int, dump: Dump) -> Record:
        ages, stored = dump.ages.astype("<f8").tobytes(), dump.stored.astype(np.uint8).tobytes()
        return records.IndexLoaded(at, life, self._with(dump.hashes.tobytes()), ages, stored)


def headers_read(policy: Policy) -> frozenset[str]:
    """Names of the request headers that the policy's plugins say they read."""
    plugins: list[Plugin] = [*policy.producers, policy.handler, *policy.pre_requests, *policy.observers]
    for profile in policy.profiles.values():
        plugins += [*profile.filters, *profile.scorers, profile.picker]
    return frozenset(name.lower() for plugin in plugins for name in plugin.reads_headers)


def recorded(outcome: Outcome | Exception) -> RecordedOutcome:
    """The outcome as it is recorded. A replay makes it from its own outcome, and compares."""
    if isinstance(outcome, Scheduled):
        selection = outcome.selection
        sight = outcome.sight
        legs = selection.legs
        return RecordedOutcome(
            "scheduled",
            tuple(map(_NAME, outcome.endpoints)),
            "",
            outcome.held,
            selection.rank,
            tuple([(leg, sight.names[run.chosen[0]]) for leg, run in legs.items()]) if legs else (),
            outcome.cached_tokens,
            *_seen(sight),
            _scored(outcome.runs),
            tuple(outcome.reasons),
        )
    if isinstance(outcome, Postponed):
        return RecordedOutcome("postponed", (outcome.worker,))
    if isinstance(outcome, Refused):
        seen = (0, 0) if outcome.sight is None else _seen(outcome.sight)
        code = outcome.refusal.code or ""
        return RecordedOutcome("refused", (), code, False, None, (), 0, *seen, _scored(outcome.runs))
    return RecordedOutcome("failed", (), type(outcome).__name__)


def _seen(sight: Sight) -> tuple[int, int]:
    figures = sight.figures
    return zlib.crc32(figures[:-1].data), zlib.crc32(figures[-1].data)


def _scored(runs: Sequence[Run]) -> int:
    digest = 0
    for run in runs:
        scores = run.scores
        if isinstance(scores, list):
            digest = zlib.crc32(array("d", chain.from_iterable(scores)), digest)
        elif scores is not None:
            digest = zlib.crc32(np.ascontiguousarray(scores).data, digest)
    return digest
