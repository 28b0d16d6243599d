"""One engine of a simulated fleet: it runs in virtual time, and remembers its load reports."""

import math
from bisect import bisect_right
from dataclasses import replace

from pointsman_simulator.disturbance import Disturbance
from pointsman_simulator.engine import EngineConfig, EngineModel
from pointsman_simulator.policy import Completed, EngineReport, KvChanged, Observation, Started
from pointsman_simulator.sequence import Sequence as EngineSequence


class FleetEngine:
    """An engine in virtual time with a memory of its reports."""

    def __init__(self, index: int, config: EngineConfig) -> None:
        self.index = index
        self._lies = False
        self.engine = EngineModel(config)
        self._now = 0.0
        self._plain = True
        """No request has named an adapter."""
        self._report_times = [-math.inf]
        self._reports: list[EngineReport] = [EngineReport(0, 0, 0.0, ())]
        self.open_legs = 0
        """Prompts here that another engine answers."""
        self.ended_legs: list[tuple[int, float]] = []
        """Those that were computed since the fleet looked: request, and when."""

    @property
    def can_begin(self) -> bool:
        """Whether it has work and no pass in flight: the time of its next event isn't known yet."""
        return self.engine.pass_ends_at is None and bool(self.engine.waiting)

    def submit_sequence(self, sequence: EngineSequence, now: float) -> None:
        self._plain = self._plain and sequence.lora is None
        self.engine.submit_sequence(sequence, now)
        self._report(now)

    def lose_engine(self, now: float) -> list[EngineSequence]:
        """The engine is gone, with its cache. Returns its open requests; one that takes its place is empty."""
        lost = [*self.engine.running, *self.engine.waiting]
        self.engine = EngineModel(self.engine.config)
        self._now = now
        self._report(now)
        return lost

    def disturb(self, disturbance: Disturbance) -> None:
        """The engine has run to this moment."""
        config, factor = self.engine.config, disturbance.factor
        match disturbance.kind:
            case "slower":
                timing = replace(config.timing, speedup=config.timing.speedup / factor)
                self.engine.change_config(replace(config, timing=timing))
            case "smaller-passes":
                tokens = max(1, round(config.max_num_batched_tokens / factor))
                self.engine.change_config(replace(config, max_num_batched_tokens=tokens))
            case "wiped":
                self.engine.cache.drop_idle_blocks()
            case "lies":
                self._lies = True
            case "lost" | "joins":  # of the fleet
                pass

    def run_passes(self, until: float, seen: list[Observation]) -> None:
        """Run every pass that ends by `until` and append its observable results."""
        engine = self.engine
        while True:
            if engine.pass_ends_at is not None:
                if engine.pass_ends_at > until:
                    return
                self._finish_pass(seen)
            skipped_to = engine.skip_decodes(self._now, until)
            if skipped_to > self._now:
                self._now = skipped_to
                self._changes((*engine.cache.take_changes(), *engine.take_host_changes()), seen)
                self._report(skipped_to)
            if engine.begin_pass(self._now) is None:
                if len(engine.link) and engine.link.next_at <= until:
                    self._now = max(self._now, engine.link.next_at)
                    continue
                self._now = until if until < math.inf else self._now
                return

    def load_at(self, when: float) -> EngineReport:
        """The content of a report as of `when`."""
        index = bisect_right(self._report_times, when) - 1
        del self._report_times[:index], self._reports[:index]
        return self._reports[0]

    def _finish_pass(self, seen: list[Observation]) -> None:
        result = self.engine.finish_pass()
        self._now = now = result.ended_at
        index, emitted, finished = self.index, result.emitted, result.finished
        if self.open_legs:
            self.ended_legs += [(request_of(sequence), now) for sequence in finished if is_leg(sequence)]
            emitted, finished = ([each for each in some if not is_leg(each)] for some in (emitted, finished))
        seen.extend(Started(int(sequence.request_id), index, now) for sequence in emitted if sequence.generated == 1)
        seen.extend(
            Completed(int(sequence.request_id), index, now, sequence.generated, sequence.cached_tokens)
            for sequence in finished
        )
        self._changes((result.stored, result.removed, result.host_stored, result.host_removed), seen)
        self._report(now)

    def _changes(self, changes: tuple[list[int], ...], seen: list[Observation]) -> None:
        if any(changes):
            seen.append(KvChanged(self.index, self._now, *changes))

    def _report(self, now: float) -> None:
        engine = self.engine
        self._report_times.append(now)
        loras = () if self._plain else tuple(dict.fromkeys(one.lora for one in engine.running if one.lora))
        running, waiting = (0, 0) if self._lies else (len(engine.running), len(engine.waiting) + len(engine.link))
        self._reports.append(EngineReport(running, waiting, engine.kv_usage, loras))


def make_leg(request: EngineSequence) -> EngineSequence:
    """The prompt of a request as a sequence of one token, with a number that no request has."""
    number = -1 - int(request.request_id)
    return EngineSequence(number, request.prompt_tokens, 1, list(request.blocks), request.lora)


def is_leg(sequence: EngineSequence) -> bool:
    return int(sequence.request_id) < 0


def request_of(leg: EngineSequence) -> int:
    return -1 - int(leg.request_id)
