"""`pointsman regret`: sums of regret by pool, hour, profile and reason."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.explain import recordings
from pointsman_cli.tables import borderless, numbers
from pointsman_cli.words import CommandError, counted
from pointsman_contracts.regret import RegretQuery, RegretSum, RegretSums

KEYS: Final = ("pool", "hour", "profile", "reason")
_FORMS: Final = ("%Y-%m-%dT%H", "%Y-%m-%d")
_BEST: Final = "best choice"


def query(by: str, since: str | None, until: str | None, pool: str | None, profile: str | None) -> RegretQuery:
    """The question. CommandError names what may be asked."""
    return RegretQuery(
        by=recordings.columns(by, KEYS),
        since=_hour("--since", since),
        until=_hour("--until", until),
        pool=pool,
        profile=profile,
    )


async def regret(url: str | None, asked: RegretQuery, console: Console, form: recordings.Form) -> None:
    """Print the sums. CommandError when no recorder answers."""
    async with bus.connected(bus.settings(url), "pointsman regret") as client:
        sums = await recordings.sums(client, asked, RegretSums, "judges decisions")
    show(sums, asked.by, console, form)


def show(
    sums: RegretSums, by: tuple[str, ...], console: Console, form: recordings.Form, notes: Sequence[str] = ()
) -> None:
    """Print sums; a table has the caveats of `sums` and these notes below it."""
    if form != "table":
        recordings.print_rows([plain(row, by) for row in sums.rows], list(plain(RegretSum(), by)), form, console)
        return
    if sums.rows:
        console.print(table(sums, by))
    for note in (*caveats(sums), *notes):
        console.print(Text(note, "dim"), soft_wrap=True)


def plain(row: RegretSum, by: tuple[str, ...]) -> dict[str, str | int]:
    """A row for programs: whole microseconds."""
    keys = {name: str(getattr(row, name) or "") for name in KEYS if name in by}
    return {
        **keys, "requests": row.requests, "judged": row.judged, "regret_us": row.regret_us, "cost_us": row.cost_us
    }  # fmt: skip


def table(sums: RegretSums, by: tuple[str, ...]) -> Table:
    """The rows, the largest regret first, and their total where there are several."""
    keys = [name for name in KEYS if name in by]
    columns = [Column(name, overflow="fold", no_wrap=name == "hour") for name in keys]
    shown = borderless(*columns, *numbers("requests", "regret", "of it", "mean"))
    whole = sum(row.regret_us for row in sums.rows)
    order = keys.index("reason") if "reason" in keys else len(keys)
    rows = sorted(sums.rows, key=lambda row: (*(getattr(row, name) for name in keys[:order]), -row.regret_us))
    for row in rows:
        words = [_BEST if name == "reason" and not row.reason else str(getattr(row, name)) for name in keys]
        share = f"{row.regret_us / whole:.0%}" if whole else "-"
        shown.add_row(*words, f"{row.requests:,}", seconds(row.regret_us), share, mean(row.regret_us, row.requests))
    if len(rows) > 1 and keys and not sums.more:
        judged = sum(row.judged for row in rows)
        blank = [""] * (len(keys) - 1)
        shown.add_row("total", *blank, f"{judged:,}", seconds(whole), "", mean(whole, judged), style="bold")
    return shown


def caveats(sums: RegretSums) -> list[str]:
    """Caveats for the reader of the numbers."""
    found: list[str] = []
    if not sums.rows:
        found.append("No request was judged.")
    if not sums.judging:
        found.append("The recorder judges no decisions: start it with POINTSMAN_JUDGE=true.")
    elif not sums.rows:
        found.append("The first ones teach how long engines take: docs/regret.md.")
    if sums.more:
        found.append("There are more rows than one answer holds; narrow them down with --since, --pool or --profile.")
    if sums.behind:
        found.append(f"The recorder is {counted(sums.behind, 'event')} behind.")
    return found


def seconds(us: int) -> str:
    """A sum of regret."""
    return f"{us / 1e6:,.2f} s" if us >= 1_000_000 else f"{us / 1e3:,.1f} ms"


def mean(us: int, requests: int) -> str:
    return f"{us / requests / 1e3:,.1f} ms" if requests else "-"


def _hour(option: str, text: str | None) -> str | None:
    if text is None:
        return None
    for form in _FORMS:
        try:
            return datetime.strptime(text, form).strftime(form)  # noqa: DTZ007 - a name of an hour, no moment
        except ValueError:
            continue
    raise CommandError(
        f"{option} {text}: neither an hour nor a day.", "Write it as 2026-03-01T09 or 2026-03-01; hours are UTC."
    )
