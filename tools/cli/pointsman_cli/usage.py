"""`pointsman usage`: what was used, by whom, of which model, on which day, and what it costs."""

import json
from datetime import date
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pointsman_cli import bus, recordings
from pointsman_cli.words import CommandError, counted
from pointsman_contracts.usage import UsageQuery, UsageSum, UsageSums

KEYS: Final = ("tenant", "subject", "model", "day")


def query(by: str, since: str | None, until: str | None, tenant: str | None, model: str | None) -> UsageQuery:
    """The question. CommandError names what may be asked."""
    names = [name.strip() for name in by.split(",") if name.strip()]
    strange = [name for name in names if name not in KEYS]
    if strange:
        raise CommandError(
            f"--by {by}: rows can't be told apart by {', '.join(strange)}.",
            f"Write some of {', '.join(KEYS)}, separated by commas.",
        )
    return UsageQuery(
        by=tuple(names), since=_day("--since", since), until=_day("--until", until), tenant=tenant, model=model
    )


async def usage(url: str | None, asked: UsageQuery, console: Console, *, as_json: bool) -> None:
    """Print the sums. CommandError when no recorder answers."""
    async with bus.connected(bus.settings(url), "pointsman usage") as client:
        sums = await recordings.ask(client, asked, UsageSums)
    if sums is None:
        raise CommandError(
            "no recorder answers.", "pointsman-recorder keeps the sums; `pointsman up` starts one beside the others."
        )
    if as_json:
        for row in sums.rows:
            console.print(json.dumps(row.model_dump(exclude_none=True)), soft_wrap=True, markup=False)
        return
    console.print(table(sums, asked.by))
    for note in notes(sums):
        console.print(Text(note, "dim"), soft_wrap=True)


def table(sums: UsageSums, by: tuple[str, ...]) -> Table:
    """The rows, and their total where there are several."""
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    keys = [name for name in ("day", *KEYS[:-1]) if name in by]
    for name in keys:
        shown.add_column(name, no_wrap=True)
    for name in ("requests", "failed", "prompt", "cached", "completion", "reasoning", "cost"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in sums.rows:
        shown.add_row(*(str(getattr(row, name) or "-") for name in keys), *_numbers(row))
    if len(sums.rows) > 1 and not sums.more:
        shown.add_row(*["total", *[""] * (len(keys) - 1)], *_numbers(total(sums.rows)), style="bold")
    return shown


def total(rows: tuple[UsageSum, ...]) -> UsageSum:
    """All rows as one."""
    names = [name for name, field in UsageSum.model_fields.items() if field.default == 0]
    return UsageSum.model_validate({name: sum(getattr(row, name) for row in rows) for name in names})


def notes(sums: UsageSums) -> list[str]:
    """What a reader of the numbers must know."""
    everything = total(sums.rows)
    found: list[str] = []
    if everything.estimated:
        requests = counted(everything.estimated, "request")
        found.append(f"Estimated, because nobody reported them in full: the tokens of {requests}.")
    if everything.unpriced:
        found.append(f"Without a price (`models.<name>.cost`): the model of {counted(everything.unpriced, 'request')}.")
    if sums.more:
        found.append("There are more rows than an answer takes; --since, --tenant or --model narrow it down.")
    if sums.behind:
        found.append(f"The recorder is {counted(sums.behind, 'event')} behind.")
    return found


def _numbers(row: UsageSum) -> list[str]:
    counts = (
        row.requests, row.failed, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.reasoning_tokens,
    )  # fmt: skip
    return [*(f"{count:,}" for count in counts), f"${row.cost:,.4f}"]


def _day(option: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise CommandError(f"{option} {text}: not a day.", "Write it as 2026-03-01; days are UTC.") from None
