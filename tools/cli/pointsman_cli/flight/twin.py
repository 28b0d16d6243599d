"""The twin of a flight log: fits it, says whether to trust it, and compares policies on it."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import TaskID

from pointsman_cli.flight.simulate import progress
from pointsman_cli.words import CommandError
from pointsman_flight.reader import LogError
from pointsman_simulator.comparison import DEFAULT_POLICY, POLICIES
from pointsman_simulator.replay import configured_policies
from pointsman_simulator.twin import report
from pointsman_simulator.twin.build import RECORDED, Progress, Twin, build, compare_policies
from pointsman_simulator.twin.flight_log import read_recording
from pointsman_simulator.twin.what_if import WhatIf, parse_speed


@dataclass(frozen=True, slots=True)
class TwinOptions:
    """The log to read, the changes to make, and the comparison."""

    log: tuple[Path, ...]
    pool: str | None
    arrivals: float
    bursts: float
    engines: int
    speeds: tuple[str, ...]
    policies: tuple[str, ...]
    """All when empty."""
    config: Path | None
    seeds: int
    processes: int
    out: Path | None


def twin(options: TwinOptions, console: Console) -> bool:
    """Print the engines, the calibration, the verdict and the comparison. Returns whether the twin is to be trusted."""
    try:
        change = WhatIf(
            options.arrivals, options.bursts, options.engines, dict(map(parse_speed, options.speeds)) or None
        )
        configured = configured_policies(options.config)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)  # before the minutes whose results it takes
        with _reported() as told:
            told("reading the log", 0.0)
            recording = read_recording(options.log, options.pool)
            made = build(recording, options.seeds, options.processes, told)
        console.print(report.about(made), highlight=False, markup=False, soft_wrap=True)
        for check in made.checks:
            console.print(f"\n{report.check(check)}", highlight=False, markup=False, soft_wrap=True)
        style = "bold green" if made.verdict.is_trusted else "bold red"
        console.print(f"\n{report.verdict(made)}\n", style=style, highlight=False, markup=False, soft_wrap=True)
        policies = options.policies or _all(made, tuple(configured))
        with _reported() as told:
            figures = compare_policies(
                twin=made,
                policies=policies,
                configured=configured,
                change=change,
                seeds=options.seeds,
                processes=options.processes,
                progress=told,
            )
    except (ValueError, LogError, OSError) as error:
        raise CommandError(str(error), "The options: pointsman simulate --help") from error
    console.print(report.comparison(figures, change), highlight=False, markup=False, soft_wrap=True)
    if not made.verdict.is_trusted:
        console.print("These figures aren't to be trusted: see the verdict.", style="red")
    if options.out is not None:
        written = report.save(made, figures, change, options.out)
        console.print("saved " + ", ".join(str(path) for path in written), soft_wrap=True)
        if len(written) < 3:
            console.print("no picture: matplotlib isn't installed (uv pip install matplotlib)")
    return made.verdict.is_trusted


def _all(made: Twin, configured: tuple[str, ...]) -> tuple[str, ...]:
    """Every policy; the default one only where it isn't the recorded one."""
    from pointsman_core.config import SchedulingPolicy

    recorded = made.recording.policy
    first = () if recorded is None else (RECORDED,)
    usual = tuple(name for name in POLICIES if name != DEFAULT_POLICY or recorded != SchedulingPolicy())
    return (*first, *usual, *configured)


@contextmanager
def _reported() -> Generator[Progress]:
    """Shows what is being done, each with a bar of its own."""
    with progress() as bar:
        tasks: dict[str, TaskID] = {}

        def told(what: str, share: float) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bar.update(task, visible=False)
                tasks[what] = bar.add_task(what, total=1.0)
            bar.update(tasks[what], completed=share)

        yield told
