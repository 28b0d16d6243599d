"""The estimated state of one engine, from the requests sent to it and its answers."""

import itertools
import math
from collections import deque
from operator import attrgetter
from typing import Final

import numpy as np

from pointsman_delay.formula import EngineFigures, new
from pointsman_delay.pass_model import BATCH, CONTEXT, DECODE, FEATURES, PREFILL, PassModel, prompt_passes
from pointsman_delay.sent import TOGETHER_MS, PromptPart, ReportedPass, Sent, report_pass
from pointsman_plugins.scheduling.arrays import Floats

_SPEED_AFTER: Final = 60
"""Observations of the pool before one engine's own speed is learnt."""
_SPEED_GAIN: Final = 0.05
_SPEED_RETURN: Final = 0.005
_LEAST_OUTPUT: Final = 8
"""Shorter answers show too little about the time between tokens."""
_NOISE_MS: Final = 5.0
"""Standard deviation of an observed time, beside a share of it."""
_TOLD: Final = attrgetter("told")
_NOTHING: Final[Floats] = np.zeros(FEATURES)
_NOTHING.flags.writeable = False


class EngineShadow:
    """One engine. Times are milliseconds of one clock.

    The engine takes up prompts in the order in which they were sent, `batch_tokens` a pass, as chunked prefill does. A
    first token tells when a pass ended: there the shadow and the engine are in step again. Requests that are sent
    together may reach the engine in any order, so first tokens also tell which prompts shared a pass.
    """

    def __init__(self, model: PassModel, batch_tokens: int) -> None:
        self._model: Final = model
        self._batch_tokens: Final = batch_tokens
        self.queue: deque[Sent] = deque()
        self.queued = 0
        """Requests without a first token."""
        self.queued_prompt = 0
        self.waiting = 0
        """Prompt tokens that wait for a pass."""
        self.busy = False
        """Whether a pass with prompts is in flight."""
        self.pass_end = -math.inf
        self.decoding = 0
        self.context = 0.0
        """Tokens of the decoding sequences."""
        self.speed = 1.0
        """Duration of this engine's passes, divided by the duration in the pool's model."""
        self._finishing: list[Sent] = []
        """Requests whose prompts end in the pass in flight."""
        self._reporting = False
        """Whether the first token of any of them will be reported."""
        self._features: Floats = _NOTHING
        self._since_step: Floats = _NOTHING
        self._in_step_at: float | None = None
        self._parts: list[PromptPart] = []
        """Parts of the pass in flight."""
        self._reported: ReportedPass | None = None
        """The last pass whose end was reported, until it is learnt from."""
        self._overdue: list[PromptPart] = []
        """Parts of prompts whose first tokens are late: the passes that computed them should be over."""
        self._passed: Floats = _NOTHING
        self._clock = self._generated = 0.0
        self._batch_time = self._context_time = 0.0

    def send(self, now: float, prompt: int, hit: int, *, told: bool) -> Sent:
        """A request was sent to the engine; it is assumed to hold `hit` of the prompt's tokens. `told` as in `Sent`."""
        self._tick(now)
        if self.busy and self.pass_end < now and not self._reporting:
            self.advance(now)
        uncached = prompt - hit
        request = Sent(told=told, sent=now, prompt=prompt, hit=hit, uncached=uncached, left=uncached)
        self.queue.append(request)
        self.queued += 1
        self.queued_prompt += prompt
        self.waiting += uncached
        if not self.busy:
            # Its pass begins when the decode pass in flight ends: half of one from now, on average.
            self._since_step = _NOTHING
            self._in_step_at = now
            wait = 0.0
            if self.decoding:
                self._since_step = np.array((0.0, 0.0, 0.0, 0.0, 0.5, 0.5 * self.decoding, 0.5e-6 * self.context))
                wait = 0.5 * self._model.decode_ms(self.decoding, self.context) * self.speed
            self.busy = True
            self._features = _NOTHING
            self._parts = []
            self.pass_end = now + wait + 1e-3
            self._finishing = []
            self._reporting = False
        return request

    @property
    def awaiting(self) -> int:
        """Requests whose prompts other engines compute."""
        return self.queued - len(self.queue) - len(self._finishing)

    @property
    def in_step_at(self) -> float:
        """When the shadow and the engine were in step last."""
        return -math.inf if self._in_step_at is None else self._in_step_at

    def start(self, request: Sent, now: float) -> None:
        """The first token of `request` came."""
        if request.started is not None:
            return
        self._tick(now)
        if self.busy and request.left >= 0 and request not in self._finishing and request in self.queue:
            self._overtake(request, now)
            # The engine is ahead: run on to the pass that finishes this prompt.
            while request.left:
                self._run_on(now)
        if self.busy and request in self._finishing and self._in_step_at is not None:
            self._report(now, self._in_step_at)
            for other in self._finishing:
                other.left = -1
                if not other.told and other is not request:
                    self._decode(other, now)
            self._begin_pass(now)
        elif self._in_step_at is not None and request.left <= 0:
            self._report_overdue(request, now, self._in_step_at)
        self._decode(request, now)

    def _overtake(self, request: Sent, now: float) -> None:
        """Move a waiting prompt whose first token came before those that were sent together with it: the engine got it
        first. The tokens that passes took up of the others were its own."""
        before = itertools.takewhile(lambda each: each is not request, self.queue)
        together = [
            other
            for other in (*self._finishing, *before)
            if other.awaits_first_token and abs(other.sent - request.sent) <= TOGETHER_MS
        ]
        if not together:
            return
        for part in reversed(self._parts):
            # Not in either: the request was dropped.
            if part.request in self._finishing:
                self.queue.appendleft(part.request)
                self._finish_later(part.request)
            if part.request in self.queue:
                part.request.left += part.tokens
                self.waiting += part.tokens
        reported = self._reported if self._reported and now <= self._reported.until else None
        for other in together:
            # The pass that was just reported may have computed it to its end; otherwise another pass did.
            moved = min(other.uncached - other.left, request.left - (reported is None))
            other.left += moved
            request.left -= moved
        self.queue.remove(request)
        if request.left or reported is None:
            self.queue.insert(next((at for at, each in enumerate(self.queue) if each in together), 0), request)
        else:
            reported.parts.append(PromptPart(request, 0, 0.0, last=True))
        self._begin_pass(now)

    def _run_on(self, now: float) -> None:
        """The pass in flight is over. It takes the next prompts in when a first token would have reported its end."""
        features, parts, finishing = self._features, self._parts, self._finishing
        if self._reporting:
            self._begin_pass(now)
            self._parts = parts + self._parts
            self._features = self._computed(self._parts, np.maximum(features, self._features))
            self._finishing = finishing + self._finishing
            self._reporting = True
        else:
            self._end_pass()
            self._begin_pass(now)

    def _report(self, now: float, since: float) -> None:
        """A first token came of the pass in flight."""
        reported = self._reported
        if reported is not None and now <= reported.until:
            alone = self._since_step + self._features
            if now - reported.at < 0.5 * self._model.predict_ms(alone) * self.speed:
                parts, shape = reported.parts + self._parts, np.maximum(reported.features, self._features)
                self._reported = reported._replace(parts=parts, features=self._computed(parts, shape))
                self._since_step = _NOTHING
                return
        self._learn_reported(now)
        self._reported = report_pass(self._since_step, self._features, self._parts, since, now)
        self._since_step = _NOTHING
        self._in_step_at = now

    def _report_overdue(self, request: Sent, now: float, since: float) -> None:
        """A first token came of a pass that was taken to be over; or with the others of that pass."""
        reported = self._reported
        if reported is not None and now <= reported.until:
            return
        self._learn_reported(now)
        if not any(part.request is request for part in self._overdue):
            return
        features = self._computed(self._overdue, self._features)
        self._reported = report_pass(_NOTHING, features, self._overdue, since, now)
        self._overdue = []
        self._in_step_at = now
        if self.busy:
            self.pass_end = now + self._model.predict_ms(self._features) * self.speed

    def _learn_reported(self, now: float) -> None:
        """No more first tokens come of the pass that was last reported."""
        reported = self._reported
        if reported is None:
            return
        self._reported = None
        computed, parts = reported.features, reported.parts
        # Their last tokens were taken to be in this pass, but no first token came.
        missing = {part.request for part in parts if part.last and part.request.awaits_first_token}
        if missing:
            self._overdue += [part for part in parts if part.request in missing]
            parts = [part for part in parts if part.request not in missing]
            computed = self._computed(parts, computed)
        self._passed = self._passed + computed
        for request, *_, last in parts:
            # It joined the batch when this pass ended.
            if last and request.passed is not None:
                request.passed = request.passed + computed
        seen = computed if reported.before is _NOTHING else reported.before + computed
        if seen[PREFILL] > 0 and self._model.wants_observation(now):
            took = reported.at - reported.since
            self._learn(seen, took, 0.05)

    def _computed(self, parts: list[PromptPart], shape: Floats) -> Floats:
        """Features of the passes that compute these parts beside the decoding sequences of `shape`, which are features
        too."""
        tokens, pairs = sum(part.tokens for part in parts), sum(part.pairs for part in parts)
        return prompt_passes(tokens, pairs, self._batch_tokens, shape) if tokens else _NOTHING

    def _decode(self, request: Sent, now: float) -> None:
        """The request joins the batch."""
        self.queued -= 1
        self.queued_prompt -= request.prompt
        self.decoding += 1
        self.context += request.prompt
        request.started = now
        request.generated = self._generated
        request.batch_time, request.context_time = self._batch_time, self._context_time
        request.passed = self._passed

    def end(self, request: Sent, now: float, output_tokens: int | None) -> None:
        """The answer ended, or the request was dropped; `output_tokens` is None when its length is unknown."""
        self._tick(now)
        if self._reported is not None and now > self._reported.until:
            self._learn_reported(now)
        if self._overdue:
            self._overdue = [part for part in self._overdue if part.request is not request]
        started = request.started
        if started is None or request.passed is None:
            self.queued -= 1
            self.queued_prompt -= request.prompt
            if request in self.queue:
                self.queue.remove(request)
                self.waiting -= request.left
            elif request in self._finishing:
                self._finish_later(request)
            if not self.queue and not self._finishing:
                self.busy = False  # whatever its pass was predicted to take
            return
        self.decoding = decoding = self.decoding - 1
        self.context = self.context - request.prompt - (self._generated - request.generated) if decoding else 0.0
        if not request.told or output_tokens is None:
            return
        took = now - started
        if output_tokens > _LEAST_OUTPUT and took > 0 and self._model.wants_observation(now):
            passes = output_tokens - 1
            seen = self._passed - request.passed
            seen[DECODE] = passes
            seen[BATCH] = passes * (self._batch_time - request.batch_time) / took
            seen[CONTEXT] = passes * (self._context_time - request.context_time) / took * 1e-6
            self._learn(seen, took, 0.08)

    def advance(self, now: float) -> bool:
        """End the passes that the model says are over and whose end no first token will report. Returns whether any
        ended."""
        advanced = False
        while self.busy and self.pass_end < now and not self._reporting:
            end = self.pass_end
            self._end_pass()
            if self._finishing:
                self._tick(end)
                for request in self._finishing:
                    self._decode(request, end)
            self._begin_pass(end)
            advanced = True
        return advanced

    @property
    def due(self) -> float:
        """When the model says that the pass in flight is over; infinite without one, or when a first token will report
        it."""
        return self.pass_end if self.busy and not self._reporting else math.inf

    @property
    def reporter(self) -> Sent | None:
        """The request whose first token will report the end of the pass in flight; None when none will."""
        for request in self._finishing:
            if request.told:
                return request
        return None

    def figures(self, capacity: float) -> EngineFigures:
        """The figures that the formula needs; `capacity` as there."""
        context, waiting, busy = self.context, self.waiting, self.busy
        whole = last = shared = 0.0
        if waiting:
            queue = self.queue
            whole, last = divmod(waiting, self._batch_tokens)
            if not whole and queue[0].left:
                shared = len(queue)  # all of them, without a look at each
            else:
                covered = 0
                for request in reversed(queue):
                    if covered >= last:
                        break
                    shared += 1
                    covered += request.left
        return new(EngineFigures, (
            self.pass_end if busy else 0.0, 0.0 if busy else 1.0, waiting, whole, last, shared,
            self.decoding, context, context + self.queued_prompt, self.queued, self.speed, capacity,
        ))  # fmt: skip

    def _tick(self, now: float) -> None:
        """Every decoding sequence has grown by as many tokens as passes fit into the time since."""
        elapsed = now - self._clock
        if elapsed <= 0:
            return
        self._clock = now
        decoding = self.decoding
        if decoding:
            context, rates = self.context, self._model.rates
            # As `PassModel.decode_ms`: calls cost as much as the rest, several times a request.
            step = (rates.decode + rates.batch * decoding + rates.growth * context) * self.speed
            grown = elapsed / step if step > 1.0 else elapsed
            self._batch_time += decoding * elapsed
            self._context_time += context * elapsed + decoding * grown * elapsed / 2
            self.context = context + decoding * grown
            self._generated += grown

    def _end_pass(self) -> None:
        if self._features is not _NOTHING:
            self._since_step = self._since_step + self._features
            self._passed = self._passed + self._features

    def _finish_later(self, request: Sent) -> None:
        """Remove the request from the ones with a prompt that ends in the pass in flight."""
        self._finishing.remove(request)
        if request.told:
            self._reporting = any(map(_TOLD, self._finishing))

    def _begin_pass(self, at: float) -> None:
        self._finishing = finishing = list[Sent]()
        self._reporting = False
        self._parts = parts = list[PromptPart]()
        queue = self.queue
        if not queue:
            self.busy = False
            return
        # A full batch leaves little room for prompts, but never none.
        room = max(self._batch_tokens - self.decoding, self._batch_tokens // 8)
        tokens, pairs = 0, 0.0
        while queue and room > 0:
            request = queue[0]
            left = request.left
            last = left <= room
            taken = left if last else room
            done = request.uncached - left + request.hit
            attended = taken * (done + taken / 2)
            parts.append(new(PromptPart, (request, taken, attended, last)))
            pairs += attended
            request.left = left - taken
            room -= taken
            tokens += taken
            if last:
                finishing.append(queue.popleft())
                if request.told:
                    self._reporting = True
        self.waiting -= tokens
        k = tokens * 1e-3
        features = (1.0, k, k**2, pairs * 1e-6, float(self.decoding > 0), self.decoding, self.context * 1e-6)
        self._features = np.array(features)
        self.busy = True
        self.pass_end = at + self._model.predict_pass_ms(features) * self.speed

    def _learn(self, features: Floats, took_ms: float, noise_share: float) -> None:
        predicted = self._model.predict_ms(features) * self.speed
        # A first token that comes far too early is no precise observation.
        deviation_ms = _NOISE_MS + noise_share * max(took_ms, predicted)
        self._model.learn_pass(features, took_ms / self.speed, deviation_ms)
        if self._model.observations > _SPEED_AFTER:
            miss = max(-0.5, min(0.5, math.log(max(took_ms, 1.0) / predicted)))
            # The pool's model learns the error that all engines share: speeds and coefficients that follow it together
            # would drift apart without end.
            own = miss - self._model.common_miss(miss)
            speed = self.speed * math.exp(_SPEED_GAIN * own - _SPEED_RETURN * math.log(self.speed))
            self.speed = min(8.0, max(0.25, speed))
