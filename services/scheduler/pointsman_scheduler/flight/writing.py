"""Makes the record of each call that enters a pool's scheduler, from its arguments and its result."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from pointsman_contracts.message import NO_BYTES
from pointsman_contracts.response import AttemptFailed
from pointsman_contracts.scheduling import ReservationChange
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_flight import records
from pointsman_flight.hashes import HASH_BYTES, BlockHashes
from pointsman_flight.records import Record
from pointsman_flight.salt import Salt
from pointsman_plugins.plugin import Plugin
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.late_binding import PeerRequest
from pointsman_scheduler.domain.outcome import Outcome
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index.life import Dump
from pointsman_scheduler.flight.backlog import Backlog
from pointsman_scheduler.flight.freezing import ranks_of
from pointsman_scheduler.flight.logged_facts import logged_facts
from pointsman_scheduler.flight.outcomes import recorded


class RecordMaker:
    """The records of one log, which go to `backlog`. Policies keep their numbers from one segment to the next."""

    def __init__(self, salt: Salt, hash_ids: bool, headers: frozenset[str], backlog: Backlog) -> None:
        """`headers`: names of the request headers that are recorded besides those that built-in plugins read."""
        self.backlog: Final = backlog
        self.policies: Final[dict[int, Policy]] = {}
        """The policies by number: the latest of those with the same settings."""
        self.headers = headers
        self.hashed: Final[Callable[[str], str] | None] = salt.hash_id if hash_ids else None
        """The replacement of a request id, session or fairness id that is recorded; None where it stays as it is."""
        self.numbers: Final[dict[Policy, int]] = {}
        """By compiled policy: the one that has the number now."""
        self._numbers: Final[dict[tuple[str, str], int]] = {}
        self._ranks = 1
        """Least common multiple of the data-parallel sizes of all workers so far."""

    def number_of(self, policy: Policy) -> int:
        """The number that the log gives the policy. Policies of the same settings share the state of their plugins, and
        a number."""
        number = self.numbers.get(policy)
        if number is None:
            number = self._numbers.setdefault((policy.name, policy.settings), len(self._numbers) + 1)
            if number not in self.policies:
                self.backlog.insert_record(records.PolicyDefined(number, policy.name, policy.hash, policy.settings))
                self.headers |= headers_read(policy)
            former = self.policies.get(number)
            if former is not None:
                del self.numbers[former]
            self.policies[number], self.numbers[policy] = policy, number
        return number

    def note_workers(self, pool: PoolScheduler) -> None:
        """Take note of the workers that registered before the log began."""
        self._ranks = math.lcm(self._ranks, ranks_of(pool.fleet))

    def list_policies(self) -> list[Record]:
        """Every policy so far: for the beginning of a segment."""
        return [
            records.PolicyDefined(number, policy.name, policy.hash, policy.settings)
            for number, policy in list(self.policies.items())  # the event loop may add one meanwhile
        ]

    def record_policies(self, policies: Iterable[Policy]) -> Record:
        return records.PoliciesUsed(tuple([self.number_of(policy) for policy in policies]))

    def record_registered(self, registration: WorkerRegistration, now: float) -> Record:
        self._ranks = math.lcm(self._ranks, max(1, registration.data_parallel_size))
        return records.WorkerRegistered(now, registration.encode())

    def record_removed(self, worker: str, now: float) -> Record:
        return records.WorkerRemoved(now, worker)

    def record_load(self, counted: bool, load: WorkerLoad, now: float) -> Record:
        return records.LoadReported(now, load, counted)

    def heard_kv(self, worker: str, boot_id: str, told: Told, complete: bool, now: float) -> Record:
        everything = None if told.everything is None else self._hashes(told.everything)
        changes = tuple([(change.op, self._hashes(change.blocks)) for change in told.changes])
        return records.KvTold(
            at=now, worker=worker, boot_id=boot_id, everything=everything, changes=changes, complete=complete
        )

    def record_sweep(self, more: bool, now: float, slack_s: float = 0.0) -> Record:
        return records.Swept(now, more, slack_s)

    def note_decision(
        self,
        request: ScheduleRequest,
        outcome: Outcome | Exception,
        *,
        now: float,
        seed: int,
        policy: Policy,
        bound: str | None,
    ) -> None:
        """Make the record of a decision, and append it."""
        backlog = self.backlog
        try:
            record = records.Decided(
                at=now,
                seed=seed,
                policy=self.number_of(policy),
                edge=request.edge,
                request_id=self.hash_id(request.request_id),
                request=self._logged(request) if bound is None else None,
                bound=bound,
                queued_s=request.queued_s,
                outcome=recorded(outcome),
            )
        except Exception as error:  # noqa: BLE001 - no request may fail for it
            backlog.refuse_input(error)
            return
        backlog.put(record)

    def _logged(self, request: ScheduleRequest) -> records.LoggedRequest:
        ranks = self._ranks
        return records.LoggedRequest(
            model=request.model,
            lora=request.lora,
            attempt=request.attempt,
            affinity=request.spread(ranks) or 0 if ranks > 1 else 0,
            blocks=self._hashes(request.blocks.tobytes()),
            facts=logged_facts(request.facts, self.headers, self.hashed),
        )

    def record_failed(self, event: AttemptFailed, now: float) -> Record:
        return records.AttemptLost(now, replace(event, request_id=self.hash_id(event.request_id)))

    def answer_added(self, request: RequestKey, worker: str, blocks: bytes, now: float) -> Record:
        edge, request_id = self._key(request)
        return records.AnswerAdded(at=now, edge=edge, request_id=request_id, worker=worker, blocks=self._hashes(blocks))

    def record_changed(self, counted: bool, change: ReservationChange, scheduler: str, now: float) -> Record:
        blocks = self._hashes(change.blocks)
        session, flow = change.session and self.hash_id(change.session), change.flow and self.hash_id(change.flow)
        told = replace(change, request_id=self.hash_id(change.request_id), session=session, flow=flow, blocks=NO_BYTES)
        return records.PeerChanged(now, scheduler, told, blocks, counted)

    def record_peer(self, scheduler: str, requests: Sequence[PeerRequest], now: float) -> Record:
        renamed = [
            each._replace(request_id=self.hash_id(each.request_id), blocks=self._hashes(each.blocks))
            for each in requests
        ]
        return records.PeerWaiting(now, scheduler, tuple(renamed))

    def peer_heard(self, scheduler: str, now: float) -> Record:
        return records.PeerWaiting(now, scheduler, None)

    def record_cancelled(self, request: RequestKey) -> Record:
        return records.WaitEnded(*self._key(request), None)

    def record_left(self, request: RequestKey, now: float) -> Record:
        return records.WaitEnded(*self._key(request), now)

    def record_dump(self, life: int, now: float) -> Record:
        return records.IndexDumped(now, life)

    def record_loaded(self, life: int, dump: Dump, now: float) -> Record:
        ages, stored = dump.ages.astype("<f8").tobytes(), dump.stored.astype(np.uint8).tobytes()
        return records.IndexLoaded(now, life, self._hashes(dump.hashes.tobytes()), ages, stored)

    def hash_id(self, text: str) -> str:
        """A request id, session or fairness id as it is recorded."""
        return text if self.hashed is None else self.hashed(text)

    def _key(self, request: RequestKey) -> RequestKey:
        return request[0], self.hash_id(request[1])

    def _hashes(self, blocks: bytes) -> BlockHashes:
        """Block hashes as they are written: their number. ValueError for a part of one."""
        count, rest = divmod(len(blocks), HASH_BYTES)
        if rest:
            raise ValueError(f"{len(blocks)} bytes are no block hashes")
        self.backlog.hashes.extend(blocks)
        return count  # pyright: ignore[reportReturnType] - a reader has the hashes


def headers_read(policy: Policy) -> frozenset[str]:
    """Names of the request headers that the policy's plugins say they read."""
    plugins: list[Plugin] = [*policy.producers, policy.handler, *policy.pre_requests, *policy.observers]
    for profile in policy.profiles.values():
        plugins += [*profile.filters, *profile.scorers, profile.picker]
    return frozenset(name.lower() for plugin in plugins for name in plugin.reads_headers)
