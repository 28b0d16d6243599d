"""The engines of a pool as shadows, and what sending a request to each of them would cost (`formula`).

A second copy of a prefix pays off when the prefix is requested again soon. Each prompt's longest
known prefix counts its uses, fading over `_POPULARITY_MS`; a worker without a copy is credited the part of the prefill
time that later requests would save, so that hot prefixes spread before one worker melts.
"""

import math
from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from pointsman_delay.few_delays import delays
from pointsman_delay.formula import (
    BOUNDLESS,
    NEW_ENGINE,
    EngineDelay,
    EngineFigures,
    Terms,
    ask,
    delay,
    stand,
)
from pointsman_delay.pass_model import PassModel, Rates
from pointsman_delay.sent import Sent
from pointsman_delay.shadow import EngineShadow
from pointsman_plugins.scheduling.arrays import FEW, Floats, greatest, least

_POPULARITY_MS: Final = 30_000.0
_POPULAR_KEPT: Final = 20_000
_TOGETHER_MS: Final = 1000.0
"""Uses of a prefix that are closer than this count as fractions of one."""
_NEVER_USED: Final = 0.0, -math.inf
_OUTPUT_PRIOR: Final = 200.0
_OUTPUT_PRIOR_WEIGHT: Final = 20.0
_OUTPUT_WINDOW: Final = 2000.0
_AHEAD_GAIN: Final = 0.01
LEAST_AHEAD: Final = 2.0
"""Requests that each needlessly computed token is assumed to delay, even on an idle fleet."""

_FREE_AT, _WAITING, _CARRIED, _QUEUED = (
    EngineFigures._fields.index(name) for name in ("free_at", "waiting", "carried", "queued")
)
_queued: Final = itemgetter(_QUEUED)
_DUE: Final = len(EngineFigures._fields)
"""The row after the figures."""


def worth_of_a_copy(uses: float, holders: int) -> float:
    """The part of a prefix's prefill that one more copy would save later requests, in [0,1)."""
    return 1.0 - 1.0 / (1.0 + uses / (holders + 1))


class DelayEstimator:
    """The engines of one pool. Times are milliseconds of one clock."""

    def __init__(self, batch_tokens: int, first_token_weight: float) -> None:
        self.model: Final = PassModel()
        self.batch_tokens: Final = batch_tokens
        """Prompt tokens that one pass is assumed to compute."""
        self.first_token_weight: Final = first_token_weight
        """How much worse a wait for the first token is than the same wait within an answer."""
        self._shadows: dict[int, EngineShadow] = {}
        self._requests: dict[Hashable, tuple[EngineShadow, Sent]] = {}
        """Each request, with the engine that it was sent to."""
        self._order: list[EngineShadow] = []
        self._rows: dict[EngineShadow, int] = {}
        self._changed: set[EngineShadow] = set()
        """Workers whose row is out of date."""
        self._figures: list[EngineFigures] = []
        self._due: list[float] = []
        """`EngineShadow.due` of each worker."""
        self._standings: list[EngineDelay[float]] = []
        """Delays of a few workers, computed on first use until the model's rates change; those in columns likewise."""
        self._columns: Floats | None = None
        """The figures of many workers, and last `_due`."""
        self._standing_columns: Floats | None = None
        self._capacities: list[float] = []
        self._rates = self.model.rates
        self._output = _OUTPUT_PRIOR
        self._outputs = _OUTPUT_PRIOR_WEIGHT
        self._ahead = 0.5
        self._popularity: dict[int, tuple[float, float]] = {}

    def lay_out(self, workers: Sequence[tuple[int, float]]) -> None:
        """Set the workers, in order, that `costs` answers for. Each is a pair: its life, and the tokens its KV cache
        has room for (infinite when unknown)."""
        self._order = [self._shadows.get(life) or self._shadow(life) for life, _ in workers]
        kept = set(self._order)
        self._shadows = {life: shadow for life, shadow in self._shadows.items() if shadow in kept}
        self._rows = {shadow: row for row, shadow in enumerate(self._order)}
        self._capacities = [min(capacity, BOUNDLESS) for _, capacity in workers]
        self._figures = [
            shadow.figures(capacity) for shadow, capacity in zip(self._order, self._capacities, strict=True)
        ]
        self._due = [shadow.due for shadow in self._order]
        self._columns = None
        if len(workers) > FEW:
            self._columns = np.vstack((np.array(self._figures, dtype=np.float64).T, self._due))
        self._forget_standings()
        self._changed.clear()

    def sent(self, life: int, key: Hashable, now: float, prompt: int, hit: int, *, told: bool = True) -> None:
        """A request was sent to a worker. If it was sent to another worker before, it is removed there. `told`:
        `started` will be called for it."""
        if key in self._requests:
            self.ended(key, now, None)
        shadow = self._shadows.get(life) or self._shadow(life)
        self._ahead += _AHEAD_GAIN * (shadow.queued - self._ahead)
        self._requests[key] = shadow, shadow.send(now, prompt, hit, told=told)
        self._changed.add(shadow)

    def started(self, key: Hashable, now: float) -> None:
        """The first token came. No-op for an unknown request."""
        if (entry := self._requests.get(key)) is not None:
            shadow, request = entry
            shadow.start(request, now)
            self._changed.add(shadow)

    def ended(self, key: Hashable, now: float, output_tokens: int | None) -> None:
        """The request ended, or never ran. No-op for an unknown request."""
        entry = self._requests.pop(key, None)
        if entry is None:
            return
        if output_tokens:
            self._outputs = counted = self._outputs + 1
            self._output += (output_tokens - self._output) / min(counted, _OUTPUT_WINDOW)
        shadow, request = entry
        shadow.end(request, now, output_tokens)
        self._changed.add(shadow)

    def await_prompt(self, key: Hashable, now: float, prompt: int) -> None:
        """Another engine computes the prompt of a request that was sent: it joins the batch with its first token, and
        has no part in a pass before. No-op for an unknown request."""
        entry = self._requests.get(key)
        if entry is not None:
            shadow, request = entry
            shadow.end(request, now, None)
            shadow.queued += 1
            shadow.queued_prompt += prompt
            awaiting = Sent(told=True, sent=now, prompt=prompt, hit=prompt, uncached=0, left=-1)
            self._requests[key] = shadow, awaiting
            self._changed.add(shadow)

    def handed_over(self, key: Hashable, at: float) -> None:
        """The prompt of this request, which is one leg of another one, was computed at this earlier time. No-op for an
        unknown request."""
        entry = self._requests.get(key)
        if entry is not None:
            shadow, request = entry
            shadow.start(request, max(at, shadow.in_step_at))
            self._changed.add(shadow)

    def place_of(self, key: Hashable) -> tuple[int, EngineShadow] | None:
        """The engine that a request was sent to, and its life; None for an unknown one."""
        entry = self._requests.get(key)
        lives = self._shadows.items() if entry is not None else ()
        return next(((life, shadow) for life, shadow in lives if entry is not None and shadow is entry[0]), None)

    def speed_of(self, life: int) -> float:
        """Like `speeds`, for one worker by its life; 1 for an unknown one."""
        shadow = self._shadows.get(life)
        return 1.0 if shadow is None else shadow.speed

    @property
    def speeds(self) -> list[float]:
        """For each worker, the duration of its passes divided by the pool's."""
        return [shadow.speed for shadow in self._order]

    @speeds.setter
    def speeds(self, speeds: Sequence[float]) -> None:
        for shadow, speed in zip(self._order, speeds, strict=True):
            shadow.speed = speed
            self._changed.add(shadow)

    @property
    def expected_output(self) -> float:
        """Expected length of an answer, in tokens."""
        return self._output

    def inherit_learning(self, other: "DelayEstimator") -> None:
        """Take over what `other` has learnt from requests: lengths of answers, queues, hot prefixes."""
        self._output, self._outputs, self._ahead = other._output, other._outputs, other._ahead
        self._popularity = other._popularity

    def costs(self, prompt: int, matched: Floats, now: float, max_output: int | None, prefix: int | None) -> Floats:
        """The delay that sending the request to each worker would cause, in milliseconds times requests.

        `matched`: prompt tokens that each worker holds; the last token of `prompt` is always computed. `prefix`
        names the longest prefix of the prompt that any worker holds; None when none does. Until the model is trusted,
        costs are tokens: those that wait for a pass, three times those that this request adds, and a tenth of what the
        worker carries.
        """
        self._catch_up(now)
        columns, trusted = self._columns, self.model.is_trusted
        most = prompt - 1.0
        if columns is None:
            held: list[float] = matched.tolist()
            best = max(held)
            if best > most:
                best, held = most, [min(tokens, most) for tokens in held]
            worth = 0.0 if prefix is None else self._use_prefix(prefix, held.count(best), now)
            if not trusted:
                choices = zip(self._figures, held, strict=True)
                return np.array([at.waiting + 3.0 * (prompt - kept) + 0.1 * at.carried for at, kept in choices])
            terms = self.terms(prompt, max_output, now, min(map(_queued, self._figures)))
            return np.array(delays(self._standings or self.standings(), held, prompt, worth, terms))
        hit, best = matched, greatest(matched)
        if best > most:
            hit, best = np.minimum(matched, most), most
        worth = 0.0 if prefix is None else self._use_prefix(prefix, int(np.count_nonzero(hit == best)), now)
        if not trusted:
            return columns[_WAITING] + 3.0 * (prompt - hit) + 0.1 * columns[_CARRIED]
        terms = self.terms(prompt, max_output, now, least(columns[_QUEUED]))
        uncached = prompt - hit
        standing = self._standing_columns
        if standing is None:
            standing = np.array(stand(tuple(columns[:_DUE]), float(self.batch_tokens), self._rates))
            self._standing_columns = standing
        saved: Floats | None = None
        if worth:
            saved = best - hit
            saved *= worth
            saved /= uncached
        return delay(standing, uncached, hit, saved, terms)

    @property
    def workers(self) -> int:
        return len(self._order)

    def ready(self, row: int, now: float) -> bool:
        """Whether the worker's only prompts to compute are those of a pass that the model says is over, by the figures
        of the last call for this moment."""
        at = self._figures[row]
        return not at.waiting and at.free_at <= now

    def joins_next_pass(self, row: int, uncached: float, little_ms: float) -> bool:
        """Whether so many tokens fit into the worker's next pass, and take little there: no more than a pass costs."""
        takes_little = uncached * self._rates.linear <= max(little_ms, self._rates.prefill)
        return takes_little and self._figures[row].waiting + uncached <= self.batch_tokens

    def count_ready(self, now: float) -> int:
        """Number of workers that are `ready`, by the figures of the last call for this moment."""
        columns = self._columns
        if columns is None:
            return sum([not at.waiting and at.free_at <= now for at in self._figures])
        busy = columns[_FREE_AT] > now
        busy |= columns[_WAITING] > 0.0
        return len(self._order) - int(np.count_nonzero(busy))

    def first_token_ms(self, row: int, uncached: float, now: float) -> float:
        """About how long a request with `uncached` tokens would take to its first token at this worker: the
        rest of the pass in flight, and one pass over all tokens that wait. By the figures of the last call for this
        moment."""
        at, rates = self._figures[row], self._rates
        tokens = at.waiting + uncached
        whole = rates.prefill + tokens * (rates.linear + rates.square * tokens)
        return max(0.0, at.free_at - now) + whole * at.speed

    def first_come_ms(self, row: int, tokens: float, now: float) -> float:
        """How long until this worker has computed all tokens that wait there and these: the rest of the pass in flight,
        and the passes that they fill. By the figures of the last call for this moment."""
        at = self._figures[row]
        ahead = self._rates.passes_ms(at.waiting + tokens, float(self.batch_tokens)) * at.speed
        return max(0.0, at.free_at - now) + ahead

    def engines(self, now: float) -> tuple[Sequence[EngineFigures], Rates]:
        """The figures of all workers now, and the rates. Any later call changes both."""
        self._catch_up(now)
        return self._figures, self._rates

    def read_figures(self, life: int, capacity: float) -> EngineFigures:
        """A worker's figures, by its life, as its shadow stands. Unlike `engines` this moves no shadow on, so that a
        question changes no decision."""
        shadow = self._shadows.get(life)
        capacity = min(capacity, BOUNDLESS)
        return NEW_ENGINE._replace(capacity=capacity) if shadow is None else shadow.figures(capacity)

    def figures_of(self, row: int) -> EngineFigures:
        """The figures of one worker, by the last call."""
        return self._figures[row]

    def awaiting(self, row: int) -> int:
        """Requests at this worker whose prompts other workers compute."""
        return self._order[row].awaiting

    def standings(self) -> list[EngineDelay[float]]:
        """The delays of all workers, by the figures of the last call. Any later call changes them."""
        if self._standings:
            return self._standings
        budget, rates = float(self.batch_tokens), self._rates
        standings = [stand(figures, budget, rates) for figures in self._figures]
        if self._columns is None:
            self._standings = standings
        return standings

    def reporter(self, row: int) -> Sent | None:
        """The request whose first token will report the end of the pass in flight; None when none will."""
        return self._order[row].reporter

    def request(self, key: Hashable) -> Sent | None:
        """A request that hasn't ended."""
        entry = self._requests.get(key)
        return None if entry is None else entry[1]

    def count_unfinished(self, row: int) -> int:
        """Requests whose prompts wait, in part or whole, for a pass of this worker."""
        return len(self._order[row].queue)

    def terms(
        self, prompt: int, max_output: int | None, now: float, least_queued: float, rates: Rates | None = None
    ) -> Terms:
        """The formula's terms for a request; `least_queued`: requests without a first token at the worker with the
        fewest. `rates`: other ones than those of the last call."""
        usual, output, weight = self._ahead, self._output, self.first_token_weight
        ahead = max(LEAST_AHEAD, usual)
        return ask(
            now=now,
            prompt=prompt,
            output=output if max_output is None or max_output > output else max_output,
            others=output,
            budget=self.batch_tokens,
            first_token=weight,
            ahead=ahead,
            spared=weight * (ahead - min(least_queued, usual)),
            rates=rates or self._rates,
        )

    def skip_requests(self, memo: dict[int, object]) -> None:
        """Have `deepcopy` leave out the open requests' places, which no question needs, and copy uses as one."""
        memo[id(self._requests)] = dict[Hashable, tuple[EngineShadow, Sent]]()
        memo[id(self._popularity)] = dict(self._popularity)

    def earlier_uses(self, prefix: int) -> float:
        """How often a prefix was requested lately, without the last time."""
        return max(0.0, self._popularity.get(prefix, (0.0, 0.0))[0] - 1.0)

    def _use_prefix(self, prefix: int, holders: int, now: float) -> float:
        """Count a use of a prefix. Returns its worth before this use."""
        popularity = self._popularity
        count, at = popularity.get(prefix, _NEVER_USED)
        gap = now - at
        count *= math.exp(-gap / _POPULARITY_MS)
        # Requests that come together need no second copy: they share the pass that computes the first.
        popularity[prefix] = count + (gap / _TOGETHER_MS if gap < _TOGETHER_MS else 1.0), now
        if len(popularity) > _POPULAR_KEPT:
            recent = now - 5 * _POPULARITY_MS
            self._popularity = {name: use for name, use in popularity.items() if use[1] > recent}
        return 1.0 - 1.0 / (1.0 + count / (holders + 1))  # as `worth_of_a_copy`

    def _shadow(self, life: int) -> EngineShadow:
        shadow = self._shadows[life] = EngineShadow(self.model, self.batch_tokens)
        return shadow

    def _catch_up(self, now: float) -> None:
        """Update the rows from the shadows at this moment."""
        if self._rates is not self.model.rates:
            self._rates = self.model.rates
            self._forget_standings()
        if self._changed:
            self._read_changed(now)
        due: list[int]
        if self._columns is None:
            if min(self._due) >= now:
                return
            due = [row for row, at in enumerate(self._due) if at < now]
        else:
            times = self._columns[_DUE]
            if least(times) >= now:
                return
            due = np.flatnonzero(times < now).tolist()
        self._changed.update([self._order[row] for row in due])
        self._read_changed(now)

    def _read_changed(self, now: float) -> None:
        changed, columns, standings = self._changed, self._columns, self._standing_columns
        while changed:
            shadow = changed.pop()
            row = self._rows.get(shadow)
            if row is None:
                continue
            due = shadow.due
            if due < now:
                shadow.advance(now)
                due = shadow.due
            self._figures[row] = figures = shadow.figures(self._capacities[row])
            if columns is None:
                self._due[row] = due
                if self._standings:
                    self._standings[row] = stand(figures, float(self.batch_tokens), self._rates)
                continue
            columns[:, row] = (*figures, due)
            if standings is not None:
                standings[:, row] = stand(figures, float(self.batch_tokens), self._rates)

    def _forget_standings(self) -> None:
        self._standings = []
        self._standing_columns = None
