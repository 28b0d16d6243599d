"""Two rows beside the policies: the default policy that knows the future, and a bound that no policy can beat."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pointsman_core.config import SchedulingPolicy
from pointsman_scheduler.domain.cache_room.return_times import ReturnTimes
from pointsman_simulator.comparison import Setting
from pointsman_simulator.curves import alone_ms
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Outcomes
from pointsman_simulator.policy import Arrival, Completed, Observation
from pointsman_simulator.scheduler_policy import SchedulerPolicy
from pointsman_simulator.sequence import Sequence as EngineSequence
from pointsman_simulator.trace import TraceRequest

_MARGIN_S: Final = 0.05
"""A turn is at the scheduler this long after it was due, at most."""


class OraclePolicy(SchedulerPolicy):
    """The default policy that knows when each session comes back, and how long an answer that is shorter than the mean
    will be. It keeps a prefix until its next turn, where that pays, and otherwise not at all."""

    def __init__(self, trace: Sequence[TraceRequest], setting: Setting, seed: int) -> None:
        super().__init__(workers=setting.workers, settings=SchedulingPolicy(), engine=setting.engine, seed=seed)
        self._trace = trace
        self._returns = _KnownReturns(trace)
        room = self.schedulers[0].policy.room
        if room is None:
            raise AssertionError("the default policy has room in caches")
        room.room.returns = self._returns

    def observe(self, observation: Observation, now: float) -> None:
        if isinstance(observation, Completed):
            self._returns.ended = observation.request
        super().observe(observation, now)

    def choose(self, arrival: Arrival) -> int | None:
        return super().choose(replace(arrival, max_tokens=self._trace[arrival.request].output_tokens))


class _KnownReturns(ReturnTimes):
    def __init__(self, trace: Sequence[TraceRequest]) -> None:
        super().__init__()
        self._back_s = _list_returns(trace)
        self.ended = 0
        """The request whose answer ended last."""

    def worth_keeping_s(self, flow: str, value_s: float) -> float:
        del flow
        back_s = self._back_s.get(self.ended)
        return 0.0 if back_s is None or back_s > value_s else back_s + _MARGIN_S


def _list_returns(trace: Sequence[TraceRequest], block_tokens: int = 64) -> dict[int, float]:
    """The seconds from a request's end until the next prompt that goes on with its own, by place in the trace; none for
    a session's last. Where that waits for others, too, the time is the trace's estimate."""
    back: dict[int, float] = {}
    last: dict[int, int] = {}
    for place, request in enumerate(trace):
        found = {last.pop(block) for block in request.blocks if block in last}
        for before in found:
            alone = request.after == (before,)
            back[before] = (request.gap_ms if alone else request.arrival_ms - trace[before].arrival_ms) / 1000.0
        full = request.prompt_tokens // block_tokens
        if full:
            last[request.blocks[full - 1]] = place
    return back


def bound_outcomes(trace: Sequence[TraceRequest], engine: EngineConfig) -> Outcomes:
    """Each request on an idle engine of its own that holds all earlier prompts of the trace."""
    known: set[int] = set()
    outcomes = Outcomes()
    for place, request in enumerate(trace):
        held = 0
        for block in request.blocks[: (request.prompt_tokens - 1) // engine.block_size]:
            if block not in known:
                break
            held += engine.block_size
        known.update(request.blocks)
        ends = [outcomes.requests[before].finished_at for before in request.after]
        arrived = max(ends) + request.gap_ms if ends else request.arrival_ms
        share = request.prompt_tokens / (engine.num_blocks * engine.block_size)
        alone = EngineSequence(place, request.prompt_tokens, request.output_tokens, request.blocks)
        alone.cached_tokens = held
        alone.first_token_at = arrived + alone_ms(request.prompt_tokens - held, engine)
        alone.finished_at = alone.first_token_at + (request.output_tokens - 1) * engine.timing.decode_ms(share)
        outcomes.requests.append(alone)
        outcomes.arrived.append(arrived)
        outcomes.workers.append(0)
    return outcomes
