"""Other arrivals, another number of engines, other speeds: changes of a fitted fleet and of its recorded traffic."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pointsman_core.plugins import unknown
from pointsman_simulator.engine import EngineConfig
from pointsman_simulator.trace import TraceRequest, scale_arrivals
from pointsman_simulator.twin.recording import RecordedPool

BURST_MS: Final = 60_000.0
"""Bursts gather the arrivals of this span."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes; the defaults change nothing."""

    arrivals: float = 1.0
    """Times as many requests a second."""
    bursts: float = 1.0
    """The arrivals of each minute come in the first part of it, times as fast; the rest of the minute is quiet."""
    engines: int = 0
    """More engines, or fewer."""
    speeds: Mapping[str, float] | None = None
    """By the name of an engine or of a model: times as fast."""

    @property
    def is_empty(self) -> bool:
        return self == WhatIf()

    def __str__(self) -> str:
        parts: list[str] = []
        if self.arrivals != 1.0:
            parts.append(f"arrivals times {self.arrivals:g}")
        if self.bursts != 1.0:
            parts.append(f"each minute's arrivals in {60 / self.bursts:.0f} s")
        if self.engines:
            parts.append(f"{self.engines:+d} {'engine' if abs(self.engines) == 1 else 'engines'}")
        parts += [f"{name} times {factor:g} as fast" for name, factor in (self.speeds or {}).items()]
        return ", ".join(parts) or "as recorded"


def parse_speed(text: str) -> tuple[str, float]:
    """`NAME=FACTOR`. Raises ValueError for anything else."""
    match = re.fullmatch(r"(.+)=([0-9]*\.?[0-9]+)", text)
    if match is None or float(match[2]) <= 0:
        raise ValueError(f"--speed {text}: write NAME=FACTOR with a factor above 0, e.g. engine-1=0.8")
    return match[1], float(match[2])


def changed_traffic(requests: Sequence[TraceRequest], change: WhatIf) -> list[TraceRequest]:
    """The requests with their arrivals changed, in order."""
    scaled = scale_arrivals(requests, change.arrivals)
    if change.bursts == 1.0:
        return scaled

    def gathered(at: float) -> float:
        minute, rest = divmod(at, BURST_MS)
        return minute * BURST_MS + rest / change.bursts

    return [replace(request, arrival_ms=gathered(request.arrival_ms)) for request in scaled]


def changed_fleet(
    engines: Mapping[str, EngineConfig], recording: RecordedPool, change: WhatIf
) -> dict[str, EngineConfig]:
    """The engines with their speeds and their number changed. More engines are like the first one; fewer lack the last
    ones. Raises ValueError for a name that is neither an engine's nor a model's, and for a fleet without engines."""
    fleet = dict(engines)
    models = {name: recording.find_engine(name).models for name in engines}
    for name, factor in (change.speeds or {}).items():
        named = [engine for engine in fleet if engine == name or name in models[engine]]
        if not named:
            known = (*fleet, *{model for served in models.values() for model in served})
            raise ValueError(unknown("engine or model", name, known))
        for engine in named:
            timing = fleet[engine].timing
            fleet[engine] = replace(fleet[engine], timing=replace(timing, speedup=timing.speedup * factor))
    names = list(fleet)
    if len(names) + change.engines < 1:
        raise ValueError(f"--engines {change.engines}: of {len(names)} engines, none would be left")
    for name in names[len(names) + change.engines :]:
        del fleet[name]
    fleet |= {f"{names[0]}+{number}": fleet[names[0]] for number in range(1, change.engines + 1)}
    return fleet
