"""Policies that decide the recorded arrivals anew on the fitted engines, and how sure their differences are."""

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from pointsman_simulator.comparison import Setting, make_policy
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import SimulatedFleet
from pointsman_simulator.trace import TraceRequest
from pointsman_simulator.twin.fit import Path
from pointsman_simulator.twin.measured import Floats, Mask

_LOOK_S: Final = 0.25
_BLOCKS: Final = 40
"""Blocks of time that are drawn from, as far as each is at least the following."""
_LEAST_BLOCK_MS: Final = 5_000.0
_DRAWS: Final = 1000
_DRAWN_GAPS: Final = 256
_INTERVAL: Final = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class World:
    """A fleet and its traffic."""

    requests: Sequence[TraceRequest]
    engines: Mapping[str, EngineConfig]
    path: Path
    setting: Setting
    report_gaps: Sequence[Floats] = ()
    """Milliseconds between the load reports of each engine, to draw from; empty where reports have a constant age."""


@dataclass(frozen=True, slots=True)
class Anew:
    """The times of one policy with one seed, a row for each request, in ms from its arrival."""

    ttft: Floats
    e2e: Floats
    reuse: float
    """Share of all prompt tokens that came from a cache."""

    def select_rows(self, rows: Mask) -> "Anew":
        """The times of these requests."""
        return replace(self, ttft=self.ttft[rows], e2e=self.e2e[rows])


def decide_anew(
    world: World,
    policies: Sequence[str],
    seeds: int,
    processes: int,
    progressed: Callable[[float], None] = lambda _: None,
) -> dict[str, list[Anew]]:
    """Run each policy with each seed, `processes` at a time. `progressed` gets the share of the requests that were
    decided, in [0,1]."""
    decided = multiprocessing.Array("q", len(policies) * seeds, lock=False)
    total = max(1, len(world.requests) * len(policies) * seeds)
    with ProcessPoolExecutor(processes, initializer=_take_world, initargs=(world, decided)) as pool:
        started = {
            name: [pool.submit(_run, name, seed, number * seeds + seed) for seed in range(seeds)]
            for number, name in enumerate(policies)
        }
        open_runs: set[Future[Anew]] = {run for runs in started.values() for run in runs}
        while open_runs:
            open_runs = wait(open_runs, timeout=_LOOK_S).not_done
            progressed(sum(decided) / total)
        return {name: [run.result() for run in runs] for name, runs in started.items()}


_world: tuple[World, MutableSequence[int]] | None = None
"""Set once in each worker process: the traffic is big, the tasks are many."""


def _take_world(world: World, decided: MutableSequence[int]) -> None:
    global _world  # noqa: PLW0603 - a pool's initializer has nowhere else to put it
    _world = (world, decided)


def _run(name: str, seed: int, place: int) -> Anew:
    if _world is None:
        raise RuntimeError("the process was not initialised")
    world, decided = _world

    def count(requests: int) -> None:
        decided[place] = requests

    reports = [
        _moments(
            world.report_gaps[row if row < len(world.report_gaps) else 0], world.requests[0].arrival_ms, (seed, row)
        )
        for row in range(len(world.engines) if world.report_gaps else 0)
    ]
    fleet = SimulatedFleet(list(world.engines.values()), world.setting.lags, reports=reports)
    prompts = np.array([float(each.prompt_tokens) for each in world.requests])
    way, way_back = world.path.draw_times(prompts, 2 * seed) / 2, world.path.draw_times(prompts, 2 * seed + 1) / 2
    # A choice that would have been another one a few milliseconds later changes all that follow: each seed has such
    # chances of its own, as each real run has.
    outcomes = fleet.replay_trace(world.requests, make_policy(name, world.setting, seed), count, way.tolist())
    done = outcomes.requests
    arrived = np.array(outcomes.arrived)  # an engine gets a request that waited for it later
    cached = float(sum(each.cached_tokens for each in done))
    return Anew(
        ttft=np.array([each.first_token_at for each in done]) - arrived + way,
        e2e=np.array([each.finished_at for each in done]) - arrived + way_back,
        reuse=cached / float(prompts.sum()),
    )


def _moments(gaps: Floats, since: float, seed: tuple[int, int]) -> Iterator[float]:
    """The times of one engine's reports, endless; the first is before `since`."""
    draws = np.random.default_rng(seed)
    at = since - float(draws.choice(gaps)) * float(draws.random())
    while True:
        for gap in draws.choice(gaps, _DRAWN_GAPS).tolist():
            yield at
            at += gap


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with the interval in which it lies in 95 of 100 days like the recorded one."""

    value: float
    least: float
    greatest: float

    @property
    def sure(self) -> bool:
        """Whether the sign of the difference is sure."""
        return self.least > 0 or self.greatest < 0


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """The outcome under a policy."""

    policy: str
    ttft_mean: Interval
    ttft_p99: Interval
    e2e_mean: Interval
    reuse: float
    ttft_change: Interval
    """Relative difference of the mean time to the first token from the first policy's, on the same requests."""
    e2e_change: Interval
    ttft_ties: tuple[str, ...] = ()
    """Policies whose mean time to the first token can't be told from this one's: the interval of the difference reaches
    0."""


def ranked(compared: Sequence[PolicyFigures]) -> str:
    """The order by the mean time to the first token: `a < b = c`, where `=` is between neighbours that are a tie."""
    ordered = sorted(compared, key=lambda each: each.ttft_mean.value)
    signs = ["=" if worse.policy in better.ttft_ties else "<" for better, worse in pairwise(ordered)]
    return ordered[0].policy + "".join(f" {sign} {each.policy}" for sign, each in zip(signs, ordered[1:], strict=True))


def figures(runs: Mapping[str, Sequence[Anew]], arrived: Floats) -> list[PolicyFigures]:
    """Means over the seeds, with intervals: blocks of time and seeds are drawn with replacement (a block bootstrap),
    the same blocks for each policy, so that differences are on the same arrivals. The first policy is the reference."""
    reference = next(iter(runs))
    draws = np.random.default_rng(0)
    span = float(arrived[-1] - arrived[0]) + 1.0
    count = int(np.clip(span / _LEAST_BLOCK_MS, 1, _BLOCKS))
    block = np.minimum(((arrived - arrived[0]) / span * count).astype(int), count - 1)
    sizes = np.bincount(block, minlength=count).astype(float)
    drawn = draws.integers(0, count, (_DRAWS, count))
    weights = np.stack([np.bincount(row, minlength=count) for row in drawn]).astype(float)
    requests = np.maximum(weights @ sizes, 1.0)

    def means(column: Sequence[Floats], seeds: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Floats:
        sums = np.stack([np.bincount(block, weights=each, minlength=count) for each in column])
        by_seed = (weights @ sums.T) / requests[:, None]
        return np.take_along_axis(by_seed, seeds, axis=1).mean(axis=1)

    drawn_means: dict[str, tuple[Floats, Floats]] = {}
    for name, own in runs.items():
        seeds = draws.integers(0, len(own), (_DRAWS, len(own)))
        drawn_means[name] = means([run.ttft for run in own], seeds), means([run.e2e for run in own], seeds)

    def mean_of(name: str, which: str) -> float:
        return float(np.mean([getattr(run, which).mean() for run in runs[name]]))

    found: list[PolicyFigures] = []
    for name, own in runs.items():
        ttft, e2e = drawn_means[name]
        base_ttft, base_e2e = drawn_means[reference]
        p99s = [
            float(np.quantile(own[index % len(own)].ttft, 0.99, weights=weights[index][block], method="inverted_cdf"))
            for index in range(0, _DRAWS, 5)
        ]
        p99 = float(np.mean([np.quantile(run.ttft, 0.99) for run in own]))
        found.append(
            PolicyFigures(
                policy=name,
                ttft_mean=_interval(mean_of(name, "ttft"), ttft),
                ttft_p99=_interval(p99, np.array(p99s)),
                e2e_mean=_interval(mean_of(name, "e2e"), e2e),
                reuse=float(np.mean([run.reuse for run in own])),
                ttft_change=_interval(mean_of(name, "ttft") / mean_of(reference, "ttft") - 1.0, ttft / base_ttft - 1.0),
                e2e_change=_interval(mean_of(name, "e2e") / mean_of(reference, "e2e") - 1.0, e2e / base_e2e - 1.0),
                ttft_ties=tuple(other for other in runs if other != name and _tied(ttft, drawn_means[other][0])),
            )
        )
    return found


def _tied(one: Floats, other: Floats) -> bool:
    least, greatest = np.quantile(one - other, _INTERVAL)
    return bool(least <= 0.0 <= greatest)


def _interval(value: float, drawn: Floats) -> Interval:
    least, greatest = np.quantile(drawn, _INTERVAL)
    return Interval(value, min(float(least), value), max(float(greatest), value))
