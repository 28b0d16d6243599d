"""The engines of a pool as shadows, and what sending a request to each of them would cost (`formula`).

What a kept prefix is worth: a prefix that is asked for again soon makes a second copy pay off. Each prompt's longest
known prefix counts its uses, fading over `_POPULARITY_MS`; a worker without a copy is credited the part of the prefill
time that later requests would save, so that hot prefixes spread before one worker melts.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from pointsman_scheduler.domain.arrays import Floats
from pointsman_scheduler.domain.delay.formula import Figures, Terms, delay
from pointsman_scheduler.domain.delay.pass_model import PassModel
from pointsman_scheduler.domain.delay.shadow import Sent, Shadow

_POPULARITY_MS: Final = 30_000.0
_POPULAR_KEPT: Final = 20_000
_TOGETHER_MS: Final = 1000.0
"""Uses of a prefix that are closer than this count as a part of one."""
_OUTPUT_PRIOR: Final = 200.0
_OUTPUT_PRIOR_WEIGHT: Final = 20.0
_OUTPUT_WINDOW: Final = 2000.0
_AHEAD_GAIN: Final = 0.01
LEAST_AHEAD: Final = 2.0
"""Requests that a token computed needlessly is taken to delay, even on an idle fleet."""

_NOTHING: Final = Figures(*([0.0] * len(Figures._fields)))
WAITING, CARRIED = Figures._fields.index("waiting"), Figures._fields.index("carried")
FEW: Final = 16
"""Up to so many workers are cheaper one by one than as columns."""


class DelayEstimator:
    """The engines of one pool. Times are milliseconds of one clock."""

    def __init__(self, batch_tokens: int, first_token_weight: float) -> None:
        self.model: Final = PassModel()
        self._batch_tokens: Final = batch_tokens
        self._weight: Final = first_token_weight
        self._shadows: dict[int, Shadow] = {}
        self._requests: dict[str, Sent] = {}
        self._order: list[Shadow] = []
        self._rows: dict[Shadow, int] = {}
        self._figures: list[Figures] = []
        self._columns: Floats = np.zeros((len(Figures._fields), 0))
        self._capacities: list[float] = []
        self._output = _OUTPUT_PRIOR
        self._outputs = _OUTPUT_PRIOR_WEIGHT
        self._ahead = 0.5
        self._popularity: dict[int, tuple[float, float]] = {}

    # Engines and requests ---------------------------------------------------------------------------------------

    def lay_out(self, workers: Sequence[tuple[int, float]]) -> None:
        """From here on `costs` answers for these workers, in this order: pairs of a life, and of the tokens its KV
        cache has room for (infinite when it didn't say)."""
        self._order = [self._shadow(life) for life, _ in workers]
        kept = set(self._order)
        self._shadows = {life: shadow for life, shadow in self._shadows.items() if shadow in kept}
        self._rows = {shadow: row for row, shadow in enumerate(self._order)}
        self._capacities = [capacity for _, capacity in workers]
        self._figures = [_NOTHING] * len(workers)
        self._columns = np.zeros((len(Figures._fields), len(workers)))
        for shadow in self._order:
            self._show(shadow)

    def sent(self, life: int, key: str, now: float, prompt: int, hit: int) -> None:
        """A request was sent to a worker. One that was sent elsewhere before is gone there."""
        self.ended(key, now, None)
        shadow = self._shadow(life)
        self._ahead += _AHEAD_GAIN * (shadow.queued - self._ahead)
        self._requests[key] = shadow.send(now, prompt, hit)
        self._show(shadow)

    def started(self, key: str, now: float) -> None:
        """Its first token came. No-op for a request that isn't known."""
        request = self._requests.get(key)
        if request is not None:
            request.shadow.start(request, now)
            self._show(request.shadow)

    def ended(self, key: str, now: float, output_tokens: int | None) -> None:
        """It ended, or never ran. No-op for a request that isn't known."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        if output_tokens:
            self._outputs += 1
            self._output += (output_tokens - self._output) / min(self._outputs, _OUTPUT_WINDOW)
        request.shadow.end(request, now, output_tokens)
        self._show(request.shadow)

    # The decision -----------------------------------------------------------------------------------------------

    def costs(self, prompt: int, hit: Floats, now: float, max_output: int | None, prefix: int | None) -> Floats:
        """The delay that sending the request to each worker would cause, in milliseconds times requests.

        `hit`: prompt tokens that each worker holds, less than `prompt`. `prefix` names the longest prefix of the
        prompt that anybody holds; None when nobody holds any. Until the model is trusted, costs are tokens: those
        that wait for a pass, three times those that this request adds, and a tenth of what the worker carries.
        """
        for shadow in self._order:
            if shadow.busy and shadow.pass_end < now and shadow.advance(now):
                self._show(shadow)
        worth = self._worth_of_a_copy(prefix, hit, now)
        if not self.model.trusted:
            waiting, carried = self._columns[WAITING], self._columns[CARRIED]
            return waiting + 3.0 * (prompt - hit) + 0.1 * carried
        model = self.model
        ahead = max(self._ahead, LEAST_AHEAD)
        terms = Terms(
            now=now,
            prompt=float(prompt),
            output=self._output if max_output is None else min(self._output, float(max_output)),
            others=self._output,
            budget=float(self._batch_tokens),
            first_token=self._weight,
            ahead=ahead,
            spared=self._weight * (ahead - min(self._ahead, *(at.queued for at in self._figures))),
            prefill=model.prefill,
            linear=model.kilotokens * 1e-3,
            square=model.square * 1e-6,
            pairs=model.pairs * 1e-6,
            decode=model.decode,
            batch=model.batch,
            growth=model.context * 1e-6,
        )
        best = float(hit.max())
        if len(self._figures) <= FEW:
            return np.array(
                [
                    delay(at, prompt - held, held, worth * (best - held) / (prompt - held), terms)
                    for at, held in zip(self._figures, hit.tolist(), strict=True)
                ]
            )
        uncached = prompt - hit
        return delay(tuple(self._columns), uncached, hit, worth * (best - hit) / uncached, terms)

    # Inside -----------------------------------------------------------------------------------------------------

    def _worth_of_a_copy(self, prefix: int | None, hit: Floats, now: float) -> float:
        """The part of a prefix's prefill that later requests are expected to save by one more copy, in [0,1)."""
        if prefix is None:
            return 0.0
        count, at = self._popularity.get(prefix, (0.0, -math.inf))
        gap = now - at
        count *= math.exp(-gap / _POPULARITY_MS)
        # Requests that come together need no second copy: they share the pass that makes the first.
        self._popularity[prefix] = (count + min(1.0, gap / _TOGETHER_MS), now)
        if len(self._popularity) > _POPULAR_KEPT:
            recent = now - 5 * _POPULARITY_MS
            self._popularity = {name: use for name, use in self._popularity.items() if use[1] > recent}
        holders = int(np.count_nonzero(hit == hit.max()))
        return 1.0 - 1.0 / (1.0 + count / (holders + 1))

    def _shadow(self, life: int) -> Shadow:
        shadow = self._shadows.get(life)
        if shadow is None:
            shadow = self._shadows[life] = Shadow(self.model, self._batch_tokens)
        return shadow

    def _show(self, shadow: Shadow) -> None:
        row = self._rows.get(shadow)
        if row is not None:
            waiting, last, shared = shadow.waiting_tokens()
            whole = waiting // self._batch_tokens
            figures = Figures(
                free_at=shadow.pass_end if shadow.busy else -math.inf,
                idle=0.0 if shadow.busy else 1.0,
                waiting=float(waiting),
                passes=whole + (1.0 if last else 0.0),
                whole=float(whole),
                last=float(last),
                shared=float(shared),
                decoding=float(shadow.decoding),
                decodes=1.0 if shadow.decoding else 0.0,
                context=shadow.context,
                carried=shadow.context + shadow.queued_prompt,
                queued=float(shadow.queued),
                speed=shadow.speed,
                capacity=self._capacities[row],
            )
            self._figures[row] = figures
            self._columns[:, row] = figures
