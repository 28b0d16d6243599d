"""Several engines and a policy in virtual time."""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pointsman_simulator.closed_loop import ClosedLoop
from pointsman_simulator.disturbance import Disturbance
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet_engine import FleetEngine, make_leg
from pointsman_simulator.policy import (
    REFUSED,
    Arrival,
    Completed,
    ElasticPolicy,
    EngineReport,
    KvChanged,
    LatePolicy,
    LegPolicy,
    Load,
    Observation,
    Reported,
    RoutingPolicy,
    Started,
)
from pointsman_simulator.sequence import Sequence as EngineSequence
from pointsman_simulator.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Lags:
    """Delays until the policy learns facts, in ms."""

    response: float = 1.0
    """From a first or last token to its event."""
    kv: float = 5.0
    """From the end of a pass to its KV events."""
    load: float = 50.0
    """Age of every load report at every decision; where reports have moments of their own, when they come in."""
    dispatch: float = 0.0
    """From a decision until the engine has the request."""
    peer: float = 1.0
    """From a scheduler's decision until the other schedulers know it."""
    handover: float = 5.0
    """For a prompt's KV cache from one engine to another, before its first byte moves."""
    handover_token: float = 0.00328
    """For each of its tokens: 131,072 bytes (32 layers, 8 KV heads of 128 values of 2 bytes) at 40 GB/s, four fifths of
    a link of 400 Gb/s."""


@dataclass(slots=True)
class Outcomes:
    """The outcome of each request, in the order of the trace; times in ms."""

    requests: list[EngineSequence] = field(default_factory=list[EngineSequence])
    workers: list[int] = field(default_factory=list[int])
    arrived: list[float] = field(default_factory=list[float])
    """First tokens and ends count from here."""
    waited_ms: list[float] = field(default_factory=list[float])
    """Before the policy chose."""


class _Legs(NamedTuple):
    """A request whose prompt one engine computes and that another one answers."""

    prefiller: int
    answering: int
    sequence: EngineSequence
    """At the engine that answers."""


class SimulatedFleet:
    """Engines of one pool. `replay` may be called once."""

    def __init__(
        self,
        engines: Sequence[EngineConfig],
        lags: Lags | None = None,
        disturbances: Sequence[Disturbance] = (),
        reports: Sequence[Iterator[float]] = (),
    ) -> None:
        """`reports` are the moments at which each engine's load reports come in, endless and in order, the first before
        the first arrival. Without them every decision finds reports of the same age."""
        self._lags = lags or Lags()
        self._moments = reports
        self._report_due = [(next(moments), row) for row, moments in enumerate(reports)]
        heapq.heapify(self._report_due)
        self._told: list[EngineReport] = [EngineReport(0, 0, 0.0, ())] * len(engines)
        """The last reports that came in at moments of their own."""
        self._block_size = engines[0].block_size
        self._workers = [FleetEngine(index, config) for index, config in enumerate(engines)]
        self._pending: list[tuple[float, int, Observation]] = []
        self._order = itertools.count()
        self._ways: Sequence[float] = ()
        self._prefiller: Callable[[int], int | None] = lambda _: None
        self._legs: dict[int, _Legs] = {}
        """By request, until its prompt is computed."""
        self._handed: dict[int, float] = {}
        """When the prompt of a request was computed that another engine answers."""
        self._link_free = [0.0] * len(engines)
        """When each engine has sent what it hands over: one prompt after the other."""
        self._clock = 0.0
        self._gaps_after = math.inf
        self._due: list[tuple[float, int, int, EngineSequence | Disturbance]] = []
        """Requests on their way to an engine, and changes of engines: when, a number, the engine."""
        self._changes = sorted(
            [each for each in disturbances if each.kind in ("lost", "joins")], key=lambda each: each.at_ms
        )
        """Engines that will come or go."""
        for disturbance in disturbances:
            heapq.heappush(self._due, (disturbance.at_ms, next(self._order), disturbance.worker, disturbance))

    def count_gaps(self, after_ms: float) -> None:
        """Count how far tokens of one answer are apart, from this time on."""
        self._gaps_after = after_ms

    def gaps(self) -> Counter[int]:
        """How often they were so far apart, in tenths of a millisecond."""
        return sum([worker.engine.gaps or Counter[int]() for worker in self._workers], Counter[int]())

    def replay_trace(
        self,
        trace: Sequence[TraceRequest],
        policy: RoutingPolicy,
        decided: Callable[[int], None] = lambda _: None,
        ways: Sequence[float] = (),
        *,
        always: bool = False,
    ) -> Outcomes:
        """Feed the trace through the policy and run every request to its end. `decided` is called with the number of
        requests so far. `ways` are milliseconds that each request takes to its engine, beside the lag of the dispatch;
        empty for none; `always`: a `LatePolicy` is asked to bind even while no request of the trace waits.

        Requests that arrive at the same instant are decided one after the other, in the order of the trace. In a closed
        loop a request arrives when those that it waits for have ended here.
        """
        sequences = [
            EngineSequence(index, request.prompt_tokens, request.output_tokens, list(request.blocks), request.lora)
            for index, request in enumerate(trace)
        ]
        self._ways = ways
        outcomes = Outcomes(sequences, [-1] * len(trace), [request.arrival_ms for request in trace], [0.0] * len(trace))
        late = policy if isinstance(policy, LatePolicy) else None
        self._prefiller = policy.prefiller if isinstance(policy, LegPolicy) else lambda _: None
        for change in self._changes:
            if change.kind == "joins":
                _elastic(policy).change_fleet(change.worker, present=False, now=0.0)
        again: set[int] = set()
        arrivals = ClosedLoop(trace)
        count = waiting = 0
        now = 0.0
        while arrivals.next_at < math.inf or waiting or arrivals.has_unknown:
            asked = waiting or always
            until = min(arrivals.next_at, late.look_at()) if late is not None and asked else arrivals.next_at
            until = min([until, *(change.at_ms for change in self._changes[:1])])
            if arrivals.has_unknown and any(worker.can_begin for worker in self._workers):
                until = now
            now = self._next_moment(now, until) if asked or arrivals.has_unknown else until
            load = self._advance(now, policy, arrivals)
            while self._changes and self._changes[0].at_ms <= now:
                again.update(self._change_fleet(self._changes.pop(0), _elastic(policy), outcomes, arrivals, now))
            while arrivals.next_at <= now:
                at, index = arrivals.pop()
                if index not in again:
                    outcomes.arrived[index] = at
                worker = policy.choose(self._arrival(index, trace[index], now, load))
                if worker is None:
                    waiting += 1
                else:
                    self._submit(outcomes, index, worker, now, arrivals)
                count += 1
            decided(count)
            if late is not None and (waiting or always):
                for request_index, worker in late.bind(now, load):
                    waiting -= 1
                    self._submit(outcomes, request_index, worker, now, arrivals)
        self._advance(math.inf, policy, arrivals)
        return outcomes

    def _change_fleet(
        self, change: Disturbance, policy: ElasticPolicy, outcomes: Outcomes, arrivals: ClosedLoop, now: float
    ) -> list[int]:
        """Tell the policy, and send the requests again that a lost engine had open. Returns these."""
        policy.change_fleet(change.worker, present=change.kind == "joins", now=now)
        if change.kind == "joins":
            return []
        lost = [int(each.request_id) for each in self._workers[change.worker].lose_engine(now)]
        self._pending = [each for each in self._pending if not _is_of(each[2], lost)]
        heapq.heapify(self._pending)
        for index in lost:
            former = outcomes.requests[index]
            outcomes.requests[index] = EngineSequence(
                index, former.prompt_tokens, former.output_tokens, former.blocks, former.lora
            )
            arrivals.arrive_again(index, now)
        return lost

    def add_sequence(self, worker: int, sequence: EngineSequence, now: float) -> None:
        """Send an engine a request that isn't of the trace; its number is none of the trace's."""
        self._workers[worker].submit_sequence(sequence, now)

    def drop_sequence(self, worker: int, sequence: EngineSequence) -> bool:
        """End such a request. False when it has ended by itself."""
        return self._workers[worker].engine.drop_sequence(sequence)

    def _arrival(self, index: int, request: TraceRequest, now: float, load: Load) -> Arrival:
        return Arrival(
            request=index, at=now, prompt_tokens=request.prompt_tokens,
            blocks=request.blocks[: request.prompt_tokens // self._block_size], load=load, lora=request.lora,
            max_tokens=request.max_tokens, streamed=request.streamed, session=request.session, promise=request.promise,
        )  # fmt: skip

    def _submit(self, outcomes: Outcomes, index: int, worker: int, now: float, arrivals: ClosedLoop) -> None:
        if worker == REFUSED:
            arrivals.end_request(index, now)
            return
        sequence = outcomes.requests[index]
        outcomes.workers[index] = worker
        outcomes.waited_ms[index] = now - outcomes.arrived[index]
        prefiller = self._prefiller(index)
        if prefiller is not None:
            sequence.carried = True
            self._legs[index] = _Legs(prefiller, worker, sequence)
            self._workers[prefiller].open_legs += 1
            worker, sequence = prefiller, make_leg(sequence)
        way = self._lags.dispatch + (self._ways[index] if len(self._ways) else 0.0)
        if way:
            heapq.heappush(self._due, (now + way, next(self._order), worker, sequence))
        else:
            self._workers[worker].submit_sequence(sequence, now)

    def _next_moment(self, now: float, until: float) -> float:
        """When the policy can next observe something, `until` at the latest; every engine has run to `now`."""
        moment = min([until, *(worker.engine.next_event_at() for worker in self._workers)])
        if self._due:
            moment = min(moment, self._due[0][0])
        if self._report_due:
            moment = min(moment, self._report_due[0][0])
        if self._pending:
            moment = min(moment, self._pending[0][0])
        return max(now, moment)

    def _advance(self, now: float, policy: RoutingPolicy, arrivals: ClosedLoop) -> Load:
        """Run all engines to `now`, pass the policy the observations known by then, and take the load reports."""
        seen: list[Observation] = []
        if self._legs:
            self._run_engines(self._clock, seen)  # begins the passes of what was sent since
        while self._legs and (moment := self._next_leg(now)) < now:
            self._run_engines(moment, seen)
        self._run_engines(now, seen)
        self._clock = now
        if self._gaps_after <= now < math.inf:
            self._gaps_after = math.inf
            for worker in self._workers:
                worker.engine.gaps = Counter()
        lags = self._lags
        for observation in seen:
            if isinstance(observation, Completed):
                arrivals.end_request(observation.request, observation.at)
            if isinstance(observation, Started) and observation.request in self._handed:
                handed_ms = observation.at - self._handed.pop(observation.request)
                observation = replace(observation, handed_ms=handed_ms)  # noqa: PLW2901 - the same one, with more
            lag = lags.kv if isinstance(observation, KvChanged) else lags.response
            heapq.heappush(self._pending, (observation.at + lag, next(self._order), observation))
        self._take_reports(now)
        while self._pending and self._pending[0][0] <= now:
            known, _, observation = heapq.heappop(self._pending)
            policy.observe(observation, known)
        observed = bool(self._moments)
        reports = self._told if observed else [worker.load_at(now - lags.load) for worker in self._workers]
        running, waiting, kv_usage, loras = zip(*reports, strict=True)
        return Load(list(running), list(waiting), list(kv_usage), list(loras), observed)

    def _next_leg(self, until: float) -> float:
        """When the next prompt may be computed that another engine waits for, or something is due; `until` at the
        latest."""
        moments = [worker.engine.next_event_at() for worker in self._workers if worker.open_legs]
        if self._due:
            moments.append(self._due[0][0])
        return min([until, *moments])

    def _run_engines(self, now: float, seen: list[Observation]) -> None:
        """Run all engines to `now`, and send on the prompts that were computed for other engines."""
        while self._due and self._due[0][0] <= now:
            at, _, row, what = heapq.heappop(self._due)
            self._workers[row].run_passes(at, seen)
            if isinstance(what, Disturbance):
                self._workers[row].disturb(what)
            else:
                self._workers[row].submit_sequence(what, at)
        for worker in self._workers:
            worker.run_passes(now, seen)
        for worker in self._workers:
            for request, at in worker.ended_legs:
                self._hand_over(request, at)
            worker.ended_legs.clear()

    def _hand_over(self, request: int, at: float) -> None:
        """The prompt of a request was computed: its KV cache goes to the engine that answers."""
        legs, lags = self._legs.pop(request), self._lags
        self._workers[legs.prefiller].open_legs -= 1
        begins = max(at, self._link_free[legs.prefiller])
        ends = begins + lags.handover + lags.handover_token * legs.sequence.prompt_tokens
        self._link_free[legs.prefiller] = ends
        self._handed[request] = at
        heapq.heappush(self._due, (ends, next(self._order), legs.answering, legs.sequence))

    def _take_reports(self, now: float) -> None:
        """The reports that come in by `now`, if they have moments of their own; every engine has run to it."""
        if now == math.inf:  # every request is decided
            return
        while self._report_due and self._report_due[0][0] <= now:
            at, row = self._report_due[0]
            heapq.heapreplace(self._report_due, (next(self._moments[row]), row))
            report = self._told[row] = self._workers[row].load_at(at - self._lags.load)
            heapq.heappush(self._pending, (at, next(self._order), Reported(row, at - self._lags.load, report)))


def _elastic(policy: RoutingPolicy) -> ElasticPolicy:
    if not isinstance(policy, ElasticPolicy):
        raise TypeError(f"{type(policy).__name__} knows no engines that come and go")
    return policy


def _is_of(observation: Observation, requests: Sequence[int]) -> bool:
    return isinstance(observation, Started | Completed) and observation.request in requests
