"""The work before a prompt at an engine: fetches from tiers below its device, and the loading of an adapter."""

from collections.abc import Hashable
from copy import deepcopy
from typing import Final, NamedTuple

import numpy as np

from pointsman_delay import PassSizeSearch
from pointsman_delay.preludes import AdapterLoads, Delayed, DelayedRequests, FetchTimes
from pointsman_plugins.scheduling.adapters import ACTIVE
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import Hold

_LEAST_MS: Final = 3.0
_NOISE: Final = 0.1
"""The noise of a time to the first token that a learnt prelude is told apart from."""


class _Awaited(NamedTuple):
    """A request at an engine that had no other prompt: its first token shows how long its prelude took."""

    pass_ms: float
    loads: bool


class Preludes:
    """Adds preludes to costs, learns how long they take, and puts a request into its engine's shadow when its prelude
    is over: before, the engine goes on with other prompts."""

    def __init__(self, estimator: PassSizeSearch) -> None:
        self.fetches: Final = FetchTimes()
        self.adapters: Final = AdapterLoads()
        self._estimator: Final = estimator
        self._delayed: Final = DelayedRequests()
        self.waiting: Final = self._delayed.waiting
        """Requests in a prelude, and some that left early."""
        self._awaited: dict[Hashable, _Awaited] = {}

    def copy(self, estimator: PassSizeSearch) -> "Preludes":
        """One that answers the same with this copy of its estimator, and that can be asked without a trace in this
        one."""
        return deepcopy(self, {id(self._estimator): estimator})

    def send_due(self, now: float) -> None:
        """Put requests whose prelude is over into the shadows. Times are milliseconds."""
        for request in self._delayed.take_due(now):
            self._put_into_shadow(request, request.due)

    def add_costs(self, costs: Floats, request: ScheduleRequest, fleet: Fleet, now: float) -> Floats:
        """The costs with what precedes the prompt. A fetch goes on beside other prompts: only its time beyond theirs
        counts, for this request. The loading of an adapter stops the whole engine."""
        best = self._estimator.best
        if not best.model.was_trusted:
            return costs
        costs, weight = costs.copy(), best.first_token_weight
        if request.fetched is not None:
            fetch_ms = np.zeros(len(costs))
            for tier, tokens in request.fetched.items():
                fetch_ms += self.fetches.per_token(tier) * tokens
            for row in np.flatnonzero(fetch_ms).tolist():
                at = best.figures_of(row)
                # Half a decode step more: its end is seen between two of them.
                took_ms = fetch_ms.item(row) + 0.5 * best.model.decode_ms(at.decoding, at.context) * at.speed
                costs[row] += weight * max(0.0, took_ms - best.first_come_ms(row, 0.0, now))
        if request.lora is not None:
            load_ms, lora = self.adapters.predict_load(request.lora), request.lora
            states: list[int] = fleet.adapters.states(lora, fleet.workers).tolist()
            for row, worker in enumerate(fleet.workers):
                if states[row] != ACTIVE and not self.adapters.is_loaded(worker.life, lora):
                    at = best.figures_of(row)
                    costs[row] += load_ms * (weight + at.decoding + weight * at.queued)
        return costs

    def begin_prelude(self, hold: Hold, now: float, prompt: int, hit: int) -> bool:
        """A request was sent. True when it is in a prelude, and the shadow gets it later."""
        change, worker, best = hold.change, hold.worker, self._estimator.best
        # The endpoint that answers a prompt which another one computes loads its adapter meanwhile.
        loads = change.lora is not None and change.uncached_tokens > 0 and not self._has_loaded(hold, change.lora)
        fetch_ms = self.fetches.predict_fetch(change.fetched) if change.fetched else 0.0
        load_ms = self.adapters.predict_load(change.lora or "") if loads else 0.0
        if not fetch_ms and not loads:
            return False
        hold.fetch_ms, hold.load_ms = fetch_ms, load_ms
        at = best.read_figures(worker.life, float(worker.capacity_tokens or "inf"))
        if at.idle and not at.waiting and change.streamed and bool(fetch_ms) != loads and best.model.was_trusted:
            rates = best.model.rates
            step_ms = best.model.decode_ms(at.decoding, at.context)
            # Half a step until its fetch begins, half a one until that is seen to have ended, and one beside its pass.
            pass_ms = (1.5 if loads else 2.0) * step_ms + rates.passes_ms(prompt - hit, float(best.batch_tokens))
            self._awaited[hold.key] = _Awaited(pass_ms * at.speed, loads)
        if not fetch_ms and not load_ms:
            return False
        due = now + fetch_ms + load_ms
        self._delayed.put_request(worker.life, hold.key, due, prompt, hit, told=change.streamed)
        return True

    def end_prelude(self, hold: Hold, now: float, ttft_ms: float) -> None:
        """The first token came."""
        change, delayed = hold.change, self._delayed.take_request(hold.key)
        awaited = self._awaited.pop(hold.key, None)
        if delayed is not None:
            self._put_into_shadow(delayed, now)
        if delayed is not None or (awaited is not None and awaited.loads):
            # When its pass began isn't known: it has no part in the shadow's passes, and teaches the load alone.
            self._estimator.await_prompt(hold.key, now, max(1, change.prompt_tokens))
        if awaited is not None:
            took, deviation = max(0.0, ttft_ms - awaited.pass_ms), _LEAST_MS + _NOISE * ttft_ms
            if awaited.loads:
                self.adapters.learn_load(change.lora or "", took, deviation)
            elif change.fetched and len(change.fetched) == 1:
                [(tier, tokens)] = change.fetched.items()
                self.fetches.learn_fetch(tier, tokens, took, deviation)
        if change.lora is not None:
            report = hold.worker.report
            self.adapters.note_use(hold.worker.life, change.lora, 0 if report is None else report.max_loras)

    def drop_request(self, hold: Hold) -> None:
        """The request is off the books."""
        self._delayed.take_request(hold.key)
        self._awaited.pop(hold.key, None)

    def _has_loaded(self, hold: Hold, lora: str) -> bool:
        worker, report = hold.worker, hold.worker.report
        reported = report is not None and lora in report.running_loras
        return reported or worker.lora_holds.get(lora, 0) > 1 or self.adapters.is_loaded(worker.life, lora)

    def _put_into_shadow(self, request: Delayed, now: float) -> None:
        self._estimator.sent(request.life, request.key, now, request.prompt, request.hit, told=request.told)
