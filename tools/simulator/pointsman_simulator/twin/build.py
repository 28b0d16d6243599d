"""From a recording to a twin with its verdict, and from there to the comparison of policies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pointsman_core.config import SchedulingPolicy
from pointsman_simulator.comparison import Setting, make_policy
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.fleet import Lags
from pointsman_simulator.twin.anew import Anew, PolicyFigures, World, decide_anew, figures
from pointsman_simulator.twin.calibration import Clock, Comparison, TwinVerdict, compared, verdict
from pointsman_simulator.twin.drift import SpeedChange, slices, speed_changes
from pointsman_simulator.twin.fit import Fit, Path, fit
from pointsman_simulator.twin.following import Followed, RecordedTraffic, follow, traffic
from pointsman_simulator.twin.measured import Floats, Mask
from pointsman_simulator.twin.recording import RecordedPool
from pointsman_simulator.twin.what_if import WhatIf, changed_fleet, changed_traffic

RECORDED: Final = "recorded"
"""Name of the policy of the log among those that are compared."""
_SLICES: Final = 24
_RUNS: Final = 5
"""Least number of runs of the recorded policy that are compared with the recording."""
_BETTER: Final = 0.97
"""Later prompts are taken to repeat answers where the error is then below this fraction of what it is otherwise."""

Progress = Callable[[str, float], None]
"""Called with what is being done, and the share of it that is done, in [0,1]."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of the recording; means in ms."""

    at_ms: float
    recorded_ttft: float
    predicted_ttft: float


@dataclass(frozen=True, slots=True)
class Twin:
    """Fitted engines, how well they predict what is recorded, and whether to trust them."""

    recording: RecordedPool
    recorded: RecordedTraffic
    fit: Fit
    checks: tuple[Comparison, ...]
    changes: tuple[SpeedChange, ...]
    slices: tuple[Slice, ...]
    verdict: TwinVerdict
    seeds: Sequence[Anew]
    """The recorded policy's choices anew, with the draws of the log, one for each run; empty when the log doesn't have
    it."""


def build(recording: RecordedPool, seeds: int, processes: int, progress: Progress) -> Twin:
    """Fit the engines, predict what is recorded, and judge. Raises ValueError for a log that is too short."""
    recorded = traffic(recording)
    count = len(recorded.requests)
    judged = np.flatnonzero(np.isfinite(recorded.ended))
    half = int(judged[len(judged) // 2]) if len(judged) else 0
    first = fit(recording, recorded, range(half), progressed=lambda share: progress("fitting the first half", share))
    repeating = traffic(recording, answers=True)
    if repeating.requests != recorded.requests:
        # Whether engines find answers in their caches depends on what clients send: the times show it.
        other = fit(
            recording, repeating, range(half), first, lambda share: progress("fitting with repeated answers", share)
        )
        if other.error < _BETTER * first.error:
            recorded, first = repeating, other
    progress("judging on the second half", 0.0)
    second = follow(recorded, first.engines)
    columns = {"TTFT": recorded.ttft, "E2E": recorded.e2e}
    predicted = [_predicted(recorded, second, first.path, seed) for seed in range(seeds)]
    checks = [compared("the engines", columns, predicted, first.path.scatter_ms, np.arange(count) >= half)]
    whole = fit(recording, recorded, start=first, progressed=lambda share: progress("fitting the whole", share))
    run = follow(recorded, whole.engines)
    ways = whole.path.usual_times(recorded.prompt_tokens)
    changes = speed_changes(recorded, run, ways)
    anew: list[Anew] = []
    if recording.policy is not None:
        drawn = replace(setting(recording, whole, whole.engines, {}), ties=_ties(recording))
        world = World(recorded.requests, whole.engines, whole.path, drawn, report_gaps(recording))
        [anew] = decide_anew(
            world, [RECORDED], max(seeds, _RUNS), processes, lambda share: progress("deciding anew", share)
        ).values()
        checks.append(
            compared(
                "the policy", columns, [{"TTFT": each.ttft, "E2E": each.e2e} for each in anew], whole.path.scatter_ms
            )
        )
    over_time = slices(recorded, _predicted(recorded, run, whole.path, 0)["TTFT"], recorded.ttft, _SLICES)
    return Twin(
        recording=recording,
        recorded=recorded,
        fit=whole,
        checks=tuple(checks),
        changes=tuple(changes),
        slices=tuple(Slice(*each) for each in over_time),
        verdict=verdict(recording, checks, changes, Clock(recording.began_unix_ms)),
        seeds=anew,
    )


def _predicted(recorded: RecordedTraffic, run: Followed, path: Path, seed: int) -> dict[str, Floats]:
    tokens = recorded.prompt_tokens
    return {
        "TTFT": run.first + path.draw_times(tokens, 2 * seed) - recorded.arrived,
        "E2E": run.ended + path.draw_times(tokens, 2 * seed + 1) - recorded.arrived,
    }


def setting(
    recording: RecordedPool,
    fitted: Fit,
    engines: Mapping[str, EngineConfig],
    configured: Mapping[str, SchedulingPolicy],
) -> Setting:
    """The fleet as policies see it, with the delays and the KV events of the recording; its policy is `RECORDED`."""
    known = dict(configured)
    if recording.policy is not None:
        known[RECORDED] = recording.policy
    configs = list(engines.values())
    back = max(Lags().response, fitted.path.constant_ms / 2)
    return Setting(
        workers=len(configs),
        engine=configs[0],
        lags=Lags(response=back, load=back if report_gaps(recording) else Lags().load),
        scheduling=known,
        loras=tuple(sorted({request.lora for request in recording.requests if request.lora is not None})),
        kv_blocks=tuple(config.num_blocks for config in configs),
        kv_events=all(engine.kv_events for engine in recording.engines),
    )


def _ties(recording: RecordedPool) -> tuple[int, ...]:
    """The seeds of the recorded decisions; none where one is unknown."""
    seeds = [request.seed for request in recording.requests]
    return tuple(seed for seed in seeds if seed is not None) if None not in seeds else ()


def report_gaps(recording: RecordedPool) -> tuple[Floats, ...]:
    """Milliseconds between the load reports of each engine; of one that reported less than twice, those of all others.
    Empty where none reported. What a scheduler knows of an engine depends on them: it counts what it sent, and what
    ended, since the last report."""
    own = [np.diff([report.at_ms for report in engine.reports]) for engine in recording.engines]
    every = np.concatenate([np.empty(0), *own])
    return tuple(gaps if gaps.any() else every for gaps in own) if every.any() else ()


def compare_policies(
    twin: Twin,
    policies: Sequence[str],
    configured: Mapping[str, SchedulingPolicy],
    change: WhatIf,
    seeds: int,
    processes: int,
    progress: Progress,
    rows: Mask | None = None,
) -> list[PolicyFigures]:
    """The outcome under each policy, with intervals; differences are from the first one. With `rows` the figures are
    of these requests. ValueError for an unknown policy or a change that can't be."""
    engines = changed_fleet(twin.fit.engines, twin.recording, change)
    requests = changed_traffic(twin.recorded.requests, change)
    world = World(
        requests,
        engines,
        twin.fit.path,
        setting(twin.recording, twin.fit, engines, configured),
        report_gaps(twin.recording),
    )
    names = list(dict.fromkeys(policies))
    for name in names:
        make_policy(name, world.setting, seed=0)
    runs = decide_anew(world, names, seeds, processes, lambda share: progress("comparing", share))
    arrived = np.array([request.arrival_ms for request in requests])
    if rows is None:
        return figures(runs, arrived)
    return figures({name: [each.select_rows(rows) for each in own] for name, own in runs.items()}, arrived[rows])
