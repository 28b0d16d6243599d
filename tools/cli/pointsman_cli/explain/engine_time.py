"""`pointsman usage --engine-time`: how long engines were at work for which clients, and what that cost."""

from typing import Final

from msgspec.structs import asdict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.explain import recordings
from pointsman_cli.tables import borderless, folding, numbers
from pointsman_cli.words import counted
from pointsman_contracts.engine_time import EngineTimeQuery, EngineTimeSum, EngineTimeSums
from pointsman_contracts.message import read_fields
from pointsman_contracts.money import dollars
from pointsman_contracts.usage import UsageQuery

KEYS: Final = ("day", "pool", "engine", "tenant", "subject", "key", "model")


async def engine_time(url: str | None, asked: UsageQuery, console: Console, form: recordings.Form) -> None:
    """Print the sums. CommandError when no recorder answers."""
    async with bus.connected(bus.settings(url), "pointsman usage") as client:
        question = read_fields(EngineTimeQuery, asdict(asked))
        sums = await recordings.sums(client, question, EngineTimeSums, "keeps the sums")
    if form != "table":
        headings = list(plain(EngineTimeSum(state=""), asked.by, 0))
        recordings.print_rows([plain(row, asked.by, sums.total_us) for row in sums.rows], headings, form, console)
        return
    if sums.rows:
        console.print(table(sums, asked.by))
    for note in notes(sums):
        console.print(Text(note, "dim"), soft_wrap=True)


def plain(row: EngineTimeSum, by: tuple[str, ...], total_us: int) -> dict[str, str | int]:
    """A row for programs; `engine_seconds` and `cost` (dollars) are plain decimals, `share` is of all engines' time."""
    return {
        **{name: str(getattr(row, name) or "") for name in KEYS if name in by},
        "state": row.state,
        "answers": row.answers,
        "estimated": row.estimated,
        "engine_seconds": f"{row.time_us / 1e6:.6f}",
        "share": f"{row.time_us / total_us if total_us else 0:.6f}",
        "cost": dollars(row.time_nanos),
    }


def table(sums: EngineTimeSums, by: tuple[str, ...]) -> Table:
    """The rows, and all time of the engines."""
    names = [name for name in KEYS if name in by]
    shown = borderless(*folding("time", *names), *numbers("answers", "engine seconds", "share", "cost"))
    for row in sums.rows:
        share = row.time_us / sums.total_us if sums.total_us else 0.0
        keys = [str(getattr(row, name) or "-") for name in names]
        figures = f"{row.answers:,}", f"{row.time_us / 1e6:,.1f}", f"{share:.1%}", f"${dollars(row.time_nanos, 6)}"
        shown.add_row(row.state, *keys, *figures)
    figures = "", f"{sums.total_us / 1e6:,.1f}", "", f"${dollars(sums.total_nanos, 6)}"
    shown.add_row("engines", *[""] * len(names), *figures, style="bold")
    return shown


def notes(sums: EngineTimeSums) -> list[str]:
    """Caveats for the reader of the numbers."""
    found: list[str] = []
    if not sums.total_us:
        found.append("No engine time is counted: it is for pools with `cost` (docs/usage.md#engine-time).")
    if estimated := sum(row.estimated for row in sums.rows):
        answers = counted(estimated, "answer")
        found.append(f"Estimated, because no engine reported their tokens, or how many were cached: {answers}.")
    if sums.more:
        found.append("There are more rows than one answer holds; narrow them down with --since, --tenant or --model.")
    if sums.behind:
        found.append(
            f"The recorder is {counted(sums.behind, 'event')} behind; the time of those answers is idle so far."
        )
    return found
