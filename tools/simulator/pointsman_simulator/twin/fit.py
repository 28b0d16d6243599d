"""Pass times of engines, fitted so that the recorded choices, run in virtual time, take as long as they did.

The time between two moments of a request is linear in the coefficients of the passes between them, once it is known
which passes these were (`measured`). So each round runs the recorded choices with the coefficients found so far, and
goes towards those that explain the recorded times best: Levenberg and Marquardt's way, shorter after a run that came
no closer to the record. Residuals beyond a few standard deviations lose weight (Huber). A parameter that the traffic
doesn't show stays near the prior: the default pass times, scaled to the engines' speed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.timing import Timing
from pointsman_simulator.twin.capacity import kv_tokens, most_sequences
from pointsman_simulator.twin.following import RecordedTraffic, follow
from pointsman_simulator.twin.measured import FEATURES, NAMES, Floats, coefficients, timing
from pointsman_simulator.twin.recording import RecordedEngine, RecordedPool

_RUNS: Final = 30
"""Runs of the record in virtual time, at most."""
_SIZE_RUNS: Final = 8
"""For each further size of a pass."""
_CLOSE: Final = 0.002
"""Twice improved by less than this share, a fit is done."""
_DAMPING: Final = 0.1
"""The damping of the first step, relative to the information in the times. Divided and multiplied by the following."""
_EASE: Final = 4.0
_MOST_DAMPING: Final = 100.0
_SIZES: Final = (8192, 2048, 4096, 16384, 1024, 512, 32768)
"""Prompt tokens of a pass that are tried, the usual ones first."""
_GOOD: Final = 0.25
"""Below this error, no other size is tried: the residuals are as large as their noise."""
_BETTER: Final = 0.97
"""Another size is taken when its error is below this fraction of the best so far."""
MOST_REQUESTS: Final = 4000
"""Requests that the coefficients are fitted to; more say little more, and take longer."""
_SEARCHED_REQUESTS: Final = 800
"""Requests that sizes of passes are compared on."""
_HUBER: Final = 2.0
_FREE: Final = NAMES.index("decode_quadratic")
"""The only coefficient that may be below 0: a cost that grows ever slower with the context."""
_LINEAR: Final = NAMES.index("decode_linear")

_NOISE_MS: Final = (4.0, 4.0)
_NOISE_SHARE: Final = (0.05, 0.02)
"""Standard deviation of a time until the first token, and of one from there to the end: ms, and a share of the time."""
_PRIOR_DEVIATION: Final = np.array([20.0, 0.015, 1e-6, 2e-6, 6.0, 60.0, 40.0, 0.2])
"""The deviations of the coefficients, for engines as fast as the default."""
_PATH: Final = slice(FEATURES, FEATURES + 2)
_SPEEDS: Final = slice(FEATURES + 2, None)
"""Logarithms, relative to the mean of the kind."""
_PATH_PRIOR: Final = (2.0, 0.2)
_PATH_DEVIATION: Final = (10.0, 1.0)
_SPEED_DEVIATION: Final = 0.7


@dataclass(frozen=True, slots=True)
class Path:
    """The time of a request beside the engine: to it and back, in the gateway and the network."""

    constant_ms: float = 0.0
    kilotoken_ms: float = 0.0
    """For each 1,000 tokens of the prompt."""
    scatter: tuple[float, ...] = (0.0,)
    """How much longer or shorter it took for requests that waited little: what is drawn from in a prediction."""

    @property
    def scatter_ms(self) -> float:
        """Standard deviation."""
        return float(np.std(self.scatter))

    def usual_times(self, prompt_tokens: Floats) -> Floats:
        """The usual milliseconds for prompts of these lengths."""
        return self.constant_ms + self.kilotoken_ms * prompt_tokens / 1000.0

    def draw_times(self, prompt_tokens: Floats, seed: int) -> Floats:
        """Milliseconds for prompts of these lengths, as they scatter."""
        draws = np.random.default_rng(seed).choice(np.array(self.scatter), len(prompt_tokens))
        return np.maximum(self.usual_times(prompt_tokens) + draws, 0.0)


@dataclass(frozen=True, slots=True)
class Fit:
    """The engines of a recording as the simulator runs them."""

    engines: Mapping[str, EngineConfig]
    path: Path
    error: float
    """Mean loss of the residuals (Huber's), in standard deviations of their noise."""
    requests: int
    """That it was fitted to."""
    states: "tuple[_State, ...]"
    """The state of each kind of engine; a later fit may begin there."""


def fit(
    recording: RecordedPool,
    recorded: RecordedTraffic,
    rows: Sequence[int] | None = None,
    start: Fit | None = None,
    progressed: Callable[[float], None] = lambda _: None,
) -> Fit:
    """Fit all engines of a recording to the requests in `rows`, by default to all; `start` is an earlier fit of the
    same recording. `progressed` is called with the share that is done, in [0,1]. ValueError when there are too few
    requests."""
    chosen = list(range(len(recorded.requests)) if rows is None else rows)[:MOST_REQUESTS]
    judged = [row for row in chosen if np.isfinite(recorded.ended[row])]
    if len(judged) < 2 * FEATURES:
        raise ValueError(f"{len(judged)} answered requests are too few to fit engines to; {2 * FEATURES} are the least")
    kinds: dict[str, list[RecordedEngine]] = {}
    for engine in recording.engines:
        kinds.setdefault(engine.kind, []).append(engine)
    found: dict[str, EngineConfig] = {}
    states: list[_State] = []
    counts: list[int] = []
    for number, members in enumerate(kinds.values()):
        names = {engine.name for engine in members}
        own = [row for row in chosen if recorded.engines[row] in names]
        group = _Group(recorded, {engine.name: _shape(engine, recording) for engine in members})
        done = number / len(kinds)

        def within(share: float, done: float = done) -> None:
            progressed(done + share / len(kinds))

        begun = start.states[number] if start else _sized(group, own[:_SEARCHED_REQUESTS], within)
        states.append(group.refined(begun, own, _RUNS, lambda share: within(0.5 + share / 2)))
        found |= group.build_fleet(states[-1])
        counts.append(len(own))
    weights = np.array(counts) / max(1, sum(counts))
    path = Path(*(weights @ np.array([state.values[_PATH] for state in states])).tolist())
    return Fit(
        found,
        replace(path, scatter=_scatter(recorded, found, path, chosen)),
        float(weights @ np.array([state.error for state in states])),
        len(judged),
        tuple(states),
    )


def _scatter(
    recorded: RecordedTraffic, fleet: Mapping[str, EngineConfig], path: Path, rows: Sequence[int]
) -> tuple[float, ...]:
    """Recorded less predicted times to the first token of the half that waited less: where the engine was wrong about a
    queue, the rest isn't the path's."""
    run = follow(recorded, fleet, rows)
    at = np.array(rows)
    waited = run.first[at] - recorded.sent[at]
    rest = recorded.first[at] - recorded.sent[at] - waited - path.usual_times(recorded.prompt_tokens[at])
    known = np.isfinite(rest)
    if not known.any():
        return (0.0,)
    return tuple(rest[known & (waited <= np.median(waited[known]))].tolist())


def _shape(engine: RecordedEngine, recording: RecordedPool) -> EngineConfig:
    """Everything of an engine but its pass times."""
    usual = EngineConfig()
    return replace(
        usual,
        block_size=recording.block_tokens,
        num_blocks=max(1, kv_tokens(engine, recording) // recording.block_tokens),
        max_num_seqs=most_sequences(engine),
        max_loras=engine.max_loras or usual.max_loras,
    )


def _sized(group: "_Group", rows: Sequence[int], progressed: Callable[[float], None]) -> "_State":
    """Coefficients with the size of a pass that explains the times best. A prompt that no size cuts tells none of them
    apart."""
    longest = max((group.recorded.prompt_tokens[row] for row in rows), default=0.0)
    best = group.refined(group.scaled_state(rows, _SIZES[0]), rows, _RUNS)
    for tried, size in enumerate(_SIZES[1:], 1):
        progressed(tried / len(_SIZES) / 2)
        if size < 2 * longest and best.error > _GOOD:
            # Begins where the best ended, so that it can't lose by having had fewer rounds.
            other = group.refined(replace(best, pass_tokens=size), rows, _SIZE_RUNS)
            if other.error < _BETTER * best.error:
                best = other
    return best


@dataclass(frozen=True, slots=True)
class _State:
    """Parameters of a group of like engines: coefficients, path, and the logarithm of each engine's speed."""

    pass_tokens: int
    values: Floats
    prior: Floats
    deviation: Floats
    """The prior's standard deviations."""
    error: float = float("inf")

    @property
    def path(self) -> Path:
        return Path(*self.values[_PATH].tolist())


class _Group:
    """Engines that differ at most in speed and size."""

    def __init__(self, recorded: RecordedTraffic, shapes: Mapping[str, EngineConfig]) -> None:
        self.recorded = recorded
        self._shapes = shapes
        self._number = {name: number for number, name in enumerate(shapes)}

    def build_fleet(self, state: _State) -> dict[str, EngineConfig]:
        """The engines with these parameters."""
        base, speeds = state.values[:FEATURES], np.exp(state.values[_SPEEDS])
        return {
            name: replace(shape, max_num_batched_tokens=state.pass_tokens, timing=timing(base / speed))
            for (name, shape), speed in zip(self._shapes.items(), speeds.tolist(), strict=True)
        }

    def scaled_state(self, rows: Sequence[int], pass_tokens: int) -> _State:
        """The default pass times, scaled until the answers of each engine take as long as recorded. Begins with fast
        engines: queues of engines that are too slow would say nothing."""
        usual, slowness = coefficients(Timing()), np.full(len(self._shapes), 0.1)
        at, owners = np.array(rows), self._owners(rows)
        took = self.recorded.e2e[at]
        for _ in range(8):
            fleet = {
                name: replace(shape, max_num_batched_tokens=pass_tokens, timing=timing(usual * factor))
                for (name, shape), factor in zip(self._shapes.items(), slowness.tolist(), strict=True)
            }
            takes = follow(self.recorded, fleet, rows).ended[at] - self.recorded.arrived[at]
            known = np.isfinite(took) & np.isfinite(takes)
            ratios = [
                float(np.median(took[own] / takes[own])) if (own := known & (owners == number)).any() else 1.0
                for number in range(len(slowness))
            ]
            slowness = slowness * ratios
            if all(abs(ratio - 1.0) < 0.03 for ratio in ratios):
                break
        mean = float(np.exp(np.log(slowness).mean()))
        values = np.concatenate([usual * mean, _PATH_PRIOR, np.log(mean / slowness)])
        prior = np.concatenate([usual * mean, _PATH_PRIOR, np.zeros(len(slowness))])
        spread = np.full(len(slowness), _SPEED_DEVIATION)
        return _State(pass_tokens, values, prior, np.concatenate([_PRIOR_DEVIATION * mean, _PATH_DEVIATION, spread]))

    def refined(
        self, state: _State, rows: Sequence[int], runs: int, progressed: Callable[[float], None] = lambda _: None
    ) -> _State:
        """The state after up to `runs` runs."""
        x, residuals = self._linear(state, rows)
        state = replace(state, error=_loss(residuals))
        damping, still = _DAMPING, 0
        for number in range(runs):
            progressed(number / runs)
            tried = replace(state, values=_step(state, x, residuals, damping))
            tried_x, tried_residuals = self._linear(tried, rows)
            error = _loss(tried_residuals)
            if error < state.error:
                still = still + 1 if error > (1.0 - _CLOSE) * state.error else 0
                state, x, residuals = replace(tried, error=error), tried_x, tried_residuals
                damping /= _EASE
            else:
                damping *= _EASE
            if still == 2 or damping > _MOST_DAMPING:
                break
        return state

    def _owners(self, rows: Sequence[int]) -> Floats:
        return np.array([self._number[self.recorded.engines[row]] for row in rows], dtype=float)

    def _linear(self, state: _State, rows: Sequence[int]) -> tuple[Floats, Floats]:
        """Replay the record. Returns the Jacobian (times × parameters) and the residuals, both in standard deviations
        of the noise. The times are those to the first token, then those from it to the end; an answer that wasn't
        streamed has only the second."""
        recorded, at = self.recorded, np.array(rows)
        run = follow(recorded, self.build_fleet(state), rows)
        owners = self._owners(rows)
        speeds = np.exp(state.values[_SPEEDS])[owners.astype(int)][:, None]
        streamed = np.isfinite(recorded.first[at])[:, None]
        path = np.column_stack([np.ones(len(at)), recorded.prompt_tokens[at] / 1000.0])
        before, behind = run.until_first[at] / speeds, run.after_first[at] / speeds
        passes = np.vstack([before, np.where(streamed, behind, before + behind)])
        ways = np.vstack([path, np.where(streamed, 0.0, path)])
        engines = (np.tile(owners, 2)[:, None] == np.arange(len(self._shapes))) * -(passes @ state.values[:FEATURES])[
            :, None
        ]
        waited = recorded.first[at] - recorded.sent[at]
        took = np.where(streamed[:, 0], recorded.decoding[at], recorded.ended[at] - recorded.sent[at])
        observed = np.concatenate([waited, took])
        deviation = np.concatenate(
            [
                noise + share * np.abs(each)
                for noise, share, each in zip(_NOISE_MS, _NOISE_SHARE, (waited, took), strict=True)
            ]
        )
        ran = np.tile(np.isfinite(run.ended[at]), 2)
        known = np.isfinite(observed) & ran
        residuals = observed - passes @ state.values[:FEATURES] - ways @ state.values[_PATH]
        x = np.hstack([passes, ways, engines])
        return x[known] / deviation[known][:, None], residuals[known] / deviation[known]


def _loss(residuals: Floats) -> float:
    """Huber's, on average."""
    size = np.abs(residuals)
    return float(np.where(size < _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2)).mean()) if len(size) else 0.0


def _step(state: _State, x: Floats, residuals: Floats, damping: float) -> Floats:
    """The next parameters to try. Only the free coefficient and logarithms may be below 0."""
    size = np.abs(residuals)
    weights = np.where(size > _HUBER, _HUBER / np.maximum(size, _HUBER), 1.0)
    information = x.T @ (x * weights[:, None])
    inverse = 1.0 / state.deviation**2
    left = information + np.diag(inverse) + damping * np.diag(np.diag(information) + inverse)
    right = x.T @ (weights * residuals) + inverse * (state.prior - state.values)
    bounded = [index for index in range(FEATURES + 2) if index != _FREE]
    held: set[int] = set()
    while True:
        # Those that would fall below 0 go to 0, and the others make up for it.
        open_ = [index for index in range(len(left)) if index not in held]
        closed = sorted(held)
        change = np.zeros(len(left))
        change[closed] = -state.values[closed]
        change[open_] = np.linalg.solve(
            left[np.ix_(open_, open_)], right[open_] - left[np.ix_(open_, closed)] @ change[closed]
        )
        below = {index for index in bounded if index not in held and state.values[index] + change[index] < 0}
        if not below:
            break
        held |= below
    values = state.values + change
    values[closed] = 0.0
    values[_FREE] = max(values[_FREE], -values[_LINEAR] / 2.0)  # the cost never falls on the way to a full cache
    return values
