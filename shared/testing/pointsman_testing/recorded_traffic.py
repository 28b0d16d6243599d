"""A pool that is recorded, and random inputs for it, for tests here and for benchmarks."""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from pointsman_contracts.kv import KvChange
from pointsman_contracts.message import NO_BYTES, Blob
from pointsman_contracts.scheduling import ReservationChange
from pointsman_core.config import SchedulingPolicy
from pointsman_core.config.flight import FlightSettings
from pointsman_flight.reader import open_log
from pointsman_flight.records import Decided
from pointsman_flight.salt import Salt
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.kv_following import Told
from pointsman_scheduler.domain.late_binding import PeerRequest
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.policy import Instances, Policy, compile_policy
from pointsman_scheduler.flight.freezing import freeze
from pointsman_scheduler.flight.recorder import figures
from pointsman_scheduler.flight.replay import FlightReplay
from pointsman_scheduler.flight.segments import Beginning, Packed, SegmentLog
from pointsman_scheduler.flight.tap import Tap
from pointsman_scheduler.plugins import registries
from pointsman_testing.scheduler_bench import LIFE, Bench

_PASS_S: Final = 0.015
_TOKEN_S: Final = 20e-6
_STEP_S: Final = 0.008
_PASS_TOKENS: Final = 8192
"""Of a pass, at most; above, its time, that of each prompt token in it, and that of each token of an answer."""

POLICIES: Final[Sequence[dict[str, object]]] = (
    {},
    {
        "producers": ["session", "active-blocks", "latency-prediction"],
        "profiles": {
            "default": {
                "filters": ["healthy"],
                "scorers": [
                    {"use": "prefix-cache", "weight": 2},
                    {"use": "queue"},
                    {"use": "kv-utilization"},
                    {"use": "session"},
                    {"use": "lora-affinity"},
                ],
                "picker": "weighted-random",
            }
        },
    },
    {
        "handler": {"use": "data-parallel"},
        "profiles": {"default": {"scorers": [{"use": "queue"}], "picker": "max-score"}},
    },
    {"sticky": {"for": "20s"}},
)


class RecordedBench(Bench):
    """A bench whose pool is recorded into `directory`."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, object] | None = None,
        *,
        hash_ids: bool = False,
        scheduler: str = "scheduler-1",
    ) -> None:
        self._kept: Final = Instances()
        super().__init__(settings, scheduler)
        self.directory: Final = directory
        self.pool.use([])
        self.log: Final = SegmentLog(self.pool, FlightSettings(hash_ids=hash_ids), directory, Salt(b"test"), "1", 2**30)
        self.tap: Final = Tap(self.pool, self.log.maker)
        self.tap.attach()
        self.tap.backlog.open()
        self.log.begin_segment(Beginning(1, self.now, None, ()))
        self.pool.use([self.policy])

    def use(self, settings: Mapping[str, object]) -> Policy:
        """Decide by another policy. As in the service, plugins whose settings stay keep what they learnt."""
        written = SchedulingPolicy.model_validate(dict(settings))
        self.policy = compile_policy("default", written, registries(), self._kept)
        self.pool.use([self.policy])
        return self.policy

    def write(self) -> None:
        """Write what was noted."""
        self.tap.backlog.check(figures(self.pool))
        encoded = self.tap.backlog.take_records().encoded
        self.log.write(Packed(b"".join([self.log.pack_records(part) for part in encoded.parts]), encoded.inputs))

    def rotate(self) -> None:
        """Begin another segment, with a snapshot."""
        self.write()
        self.log.end_segment("rotated")
        used = tuple([self.log.maker.number_of(policy) for policy in self.pool.policies])
        self.log.begin_segment(Beginning(2, self.now, freeze(self.pool, self.log.maker.policies), used))

    def end(self) -> None:
        """Close the log."""
        self.write()
        self.log.end_segment("closed")


def replayed(*paths: Path) -> tuple[int, list[str]]:
    """FlightReplay a log: how many decisions it has, and every difference."""
    decisions, differences = 0, list[str]()
    for flight in open_log(paths):
        for step in FlightReplay(flight, registries()).run():
            decisions += isinstance(step.logged.record, Decided)
            if step.difference:
                differences.append(f"{step.logged.number} {type(step.logged.record).__name__}: {step.difference}")
    return decisions, differences


class _Engine:
    """Computes the prompts that it got, pass by pass, in a time that depends on their tokens: schedulers learn it, and
    let requests wait."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self._queue: list[tuple[float, ScheduleRequest, int]] = []

    def take(self, at: float, request: ScheduleRequest, uncached_tokens: int) -> None:
        """Queue a request."""
        self._queue.append((at, request, uncached_tokens))

    def pass_ends_at(self) -> float:
        """When the next pass ends; infinite without a request."""
        return self._next()[0]

    def end_pass(self) -> list[ScheduleRequest]:
        """Requests with a prompt that it computed."""
        self.free_at, count = self._next()
        done, self._queue = self._queue[:count], self._queue[count:]
        return [request for _, request, _ in done]

    def _next(self) -> tuple[float, int]:
        if not self._queue:
            return float("inf"), 0
        begins = max(self.free_at, self._queue[0][0])
        tokens = count = 0
        for at, _, uncached in self._queue:
            if at > begins or (count and tokens + uncached > _PASS_TOKENS):
                break
            tokens += uncached
            count += 1
        return begins + _PASS_S + _TOKEN_S * tokens, count


class RandomTraffic:
    """Random inputs for a bench: everything that may enter a pool. Requests come in bursts that its engines can't
    compute at once, so that some wait for their engine."""

    def __init__(self, bench: Bench, seed: int, workers: int = 3, *, revisions: bool = True) -> None:
        self.bench: Final = bench
        self.random: Final = Random(seed)
        self.names: Final = [f"engine-{number}" for number in range(workers)]
        self._life = 1
        self._open: list[ScheduleRequest] = []
        self._engines: Final = {name: _Engine() for name in self.names}
        self._ends: list[tuple[float, int, ScheduleRequest, int]] = []
        """Of answers that have begun: when, a number, the request, and how many tokens."""
        self._numbers: Final = count()
        for name in self.names:
            bench.join(name, data_parallel_size=2, max_context=100_000, loras=("adapter",))
        self._kinds: Final = (
            (self.ask, 20), (self.burst, 4), (self.report, 30), (self.fail, 3), (self.tell, 10), (self.peer, 10),
            (self.sweep, 5), (self.restart, 1), (self.leave, 1), (self.bind, 20), (self.peers_wait, 15),
            (self.give_up, 3), (self.transfer, 1), (self.revise, int(revisions)),
        )  # fmt: skip

    def run(self, steps: int) -> None:
        """So many inputs."""
        kinds, weights = zip(*self._kinds, strict=True)
        for kind in self.random.choices(kinds, weights, k=steps):
            self._pass_time(self.bench.now + self.random.expovariate(200.0))
            kind()

    def _pass_time(self, until: float) -> None:
        """Answers begin and end meanwhile, and requests that waited leave."""
        while True:
            ends_at, name = min((engine.pass_ends_at(), name) for name, engine in self._engines.items())
            if self._ends and self._ends[0][0] <= min(ends_at, until):
                at, _, request, tokens = heappop(self._ends)
                self.bench.now = max(self.bench.now, at)
                self._end(request, tokens)
            elif ends_at <= until:
                self.bench.now = max(self.bench.now, ends_at)
                for request in self._engines[name].end_pass():
                    self._begin(request, name)
            else:
                break
            self.bind()
        self.bench.now = max(self.bench.now, until)

    def _begin(self, request: ScheduleRequest, name: str) -> None:
        hold = self.bench.pool.books.find_reservation(request.key)
        if hold is None or hold.worker.name != name:
            return
        now = self.bench.now
        self.bench.pool.books.started(request.key, name, (now - hold.at) * 1000.0, now)
        tokens = self.random.randrange(1, 100)
        heappush(self._ends, (now + _STEP_S * tokens, next(self._numbers), request, tokens))

    def _end(self, request: ScheduleRequest, tokens: int) -> None:
        if request in self._open:
            self._open.remove(request)
            ok = self.random.random() < 0.95
            hold = self.bench.pool.books.find_reservation(request.key)
            if hold is not None and ok and not tokens % 3:
                blocks = np.arange(1 << 40, (1 << 40) + tokens % 7, dtype="<u8").tobytes()
                self.bench.pool.books.add_answer(request.key, hold.worker.name, blocks, self.bench.now)
            self.bench.pool.books.completed(request.key, self.bench.now, ok, tokens, 500.0)

    def burst(self) -> None:
        for _ in range(self.random.randrange(2, 16)):
            self.ask()

    def ask(self) -> None:
        roll = self.random.random
        request = self.bench.prompt(
            self.random.randrange(30),
            self.random.randrange(1, 40),
            self.random.randrange(8),
            session=f"session-{self.random.randrange(20)}" if roll() < 0.3 else None,
            lora="adapter" if roll() < 0.1 else None,
            stream=roll() < 0.9,
            blocks_precise=roll() < 0.5,
            max_output_tokens=self.random.randrange(1, 500) if roll() < 0.5 else None,
            headers={"authorization": "a secret", "epp-profile": "default"},
        )
        self._decide(request)
        self._open.append(request)

    def _decide(self, request: ScheduleRequest) -> None:
        outcome = self.bench.pool.decide(request, self.bench.now, self.random.getrandbits(48), self.bench.policy)
        if isinstance(outcome, Scheduled) and not outcome.held:
            hold = outcome.holds[0]
            self._engines[hold.worker.name].take(self.bench.now, request, hold.change.uncached_tokens)

    def report(self) -> None:
        name = self.random.choice(self.names)
        worker = self.bench.pool.fleet.find(name)
        life = LIFE if worker is None else worker.registration.boot_id
        self.bench.hear(
            name, boot_id=life, running=self.random.randrange(20), waiting=self.random.randrange(5),
            kv_usage=self.random.random(), running_loras=("adapter",) if self.random.random() < 0.5 else (),
            max_loras=2,
        )  # fmt: skip

    def fail(self) -> None:
        if self._open:
            self.bench.fail(self.random.choice(self._open).request_id, self.random.choice(self.names), self.names[0])

    def tell(self) -> None:
        name = self.random.choice(self.names)
        worker = self.bench.pool.fleet.find(name)
        if worker is None:
            return
        blocks = np.random.default_rng(self.random.randrange(30)).integers(1, 2**63, size=10, dtype=np.uint64)
        op = self.random.choice(("stored", "stored", "removed", "cleared"))
        everything = blocks.tobytes() if self.random.random() < 0.1 else None
        if self.random.random() < 0.3:
            op += self.random.choice(("@host", "@disk", "@store:fleet"))
        told = Told(
            everything, (KvChange(op=op, blocks=NO_BYTES if op.startswith("cleared") else Blob(blocks.tobytes())),)
        )
        complete = self.random.random() < 0.8
        self.bench.pool.hear_kv(name, worker.registration.boot_id, told, complete, self.bench.now)

    def peer(self) -> None:
        request = self.bench.prompt(self.random.randrange(30), self.random.randrange(1, 40))
        name = self.random.choice(self.names)
        self.bench.place(request, name)
        if self.random.random() < 0.7:
            change = ReservationChange(
                op=self.random.choice(("confirm", "release", "retract")),
                request_id=request.request_id, worker=name, boot_id=LIFE, edge=request.edge,
            )  # fmt: skip
            self.bench.pool.books.apply(change, "scheduler-2", self.bench.now)

    def sweep(self) -> None:
        self._pass_time(self.bench.now + self.random.random())
        self.bench.pool.sweep(self.bench.now)

    def restart(self) -> None:
        self._life += 1
        self.bench.join(self.random.choice(self.names), boot_id=f"life-{self._life}", data_parallel_size=2)

    def leave(self) -> None:
        name = self.random.choice(self.names[1:])
        self.bench.pool.remove(name, self.bench.now)
        if self.random.random() < 0.7:
            self.bench.join(name, boot_id=f"life-{self._life}", data_parallel_size=2)

    def bind(self) -> None:
        for bound in self.bench.pool.bind(self.bench.now):
            self._decide(bound.request)

    def peers_wait(self) -> None:
        at = self.bench.now * 1000
        requests: list[PeerRequest] = []
        for name in self.names[:2]:
            # With blocks that engines may hold, or without, where the report before had them.
            like = self.bench.prompt(self.random.randrange(30), self.random.randrange(1, 40))
            blocks = like.blocks.tobytes() if self.random.random() < 0.7 else b""
            requests.append(
                PeerRequest(
                    name, like.facts.prompt_tokens / 2, like.facts.prompt_tokens, 0, at + 500, "edge-2",
                    f"theirs-{name}", at - 5, None, like.facts.block_tokens, blocks,
                )
            )  # fmt: skip
        self.bench.pool.binder.heard("scheduler-3", at)
        self.bench.pool.binder.peer("scheduler-2", requests, at)

    def give_up(self) -> None:
        if self._open:
            request = self._open.pop(self.random.randrange(len(self._open)))
            if self.random.random() < 0.5:
                self.bench.pool.binder.cancel(request.key)
                self.bench.pool.books.completed(request.key, self.bench.now, ok=False, told_ms=5)
                return
            bound = self.bench.pool.binder.leave_now(request.key, self.bench.now * 1000)
            if bound is not None:
                self._decide(bound.request)

    def transfer(self) -> None:
        worker = self.bench.pool.fleet.find(self.random.choice(self.names))
        if worker is not None and worker.life > 0 and worker.present:
            dump = self.bench.pool.index.dump(worker.life, self.bench.now)
            self.bench.pool.index.load(worker.life, dump._replace(hashes=dump.hashes + np.uint64(2)), self.bench.now)

    def revise(self) -> None:
        self.bench.policy = self.bench.use(self.random.choice(POLICIES))
