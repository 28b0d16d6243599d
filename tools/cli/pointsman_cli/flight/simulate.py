"""Policies side by side in virtual time: the progress, the table, and the saved files."""

import sys
from dataclasses import asdict

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pointsman_cli.words import CommandError, counted
from pointsman_simulator import report
from pointsman_simulator.comparison import Compared, compare
from pointsman_simulator.replay import Replay, ReplayOptions, prepare


def begin_replay(options: ReplayOptions) -> Replay:
    """Make a replay, and print its size. Raises CommandError for wrong options."""
    try:
        replay = prepare(options)
    except (ValueError, OSError) as error:
        raise CommandError(str(error), "The options: pointsman simulate --help") from error
    requests, engines = counted(len(replay.trace), "request"), counted(options.workers, "engine")
    if options.ranks > 1:
        engines = f"{engines} of {options.ranks} ranks"
    print(f"{requests} over {replay.minutes:.1f} min on {engines}; times in ms")
    return replay


def simulate(options: ReplayOptions, console: Console) -> None:
    """Print a row for each policy as soon as it is done; save all when asked to."""
    replay = begin_replay(options)
    sessions = any(request.session is not None for request in replay.trace)
    print(report.heading(sessions=sessions), flush=True)

    def show(compared: Compared) -> None:
        sys.stdout.write(f"{report.row(compared)}\n")
        sys.stdout.flush()

    with progress() as bar:
        task = bar.add_task("simulating", total=1.0)
        results = compare(
            trace=replay.trace,
            policies=replay.policies,
            setting=replay.setting,
            seeds=options.seeds,
            processes=options.processes,
            done=show,
            progressed=lambda share: bar.update(task, completed=share),
        )
    if options.seeds > 1:
        print(*(report.ranges(compared) for compared in results), sep="\n")
    if options.out is not None:
        about = {key: str(value) for key, value in asdict(options).items() if value is not None}
        written = report.save(results, dict(about), options.out)
        console.print("saved " + ", ".join(str(path) for path in written), soft_wrap=True)
        if len(written) < 3:
            console.print("no plot: matplotlib isn't installed (uv pip install matplotlib)")


def progress() -> Progress:
    """A bar with an estimate of the time that is left, on stderr: programs read stdout."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=Console(stderr=True, highlight=False),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
