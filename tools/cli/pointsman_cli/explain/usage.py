"""`pointsman usage`: usage and cost by tenant, subject, key, model and day."""

from collections.abc import Sequence
from datetime import date
from typing import Final

from msgspec.structs import asdict
from nats.aio.client import Client
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.explain import recordings
from pointsman_cli.tables import borderless, numbers
from pointsman_cli.words import CommandError, counted, moment
from pointsman_contracts.message import read_fields
from pointsman_contracts.money import dollars, nanos
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.usage import UsageQuery, UsageSum, UsageSums
from pointsman_core.plugins import did_you_mean

KEYS: Final = ("tenant", "subject", "key", "model", "day")
_COUNTS: Final = {
    "requests": "requests",
    "failed": "failed",
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "completion_tokens": "output",
    "reasoning_tokens": "reasoning",
}
"""Field → heading of the table."""
_NAMED: Final = 20
"""Known names that an error lists at most."""
_SELDOM: Final = ("failed", "cached_tokens", "reasoning_tokens")
"""Left out of the table where every row has none."""


def query(
    by: str,
    since: str | None,
    until: str | None,
    tenant: str | None,
    model: str | None,
    key: str | None = None,
    keys: Sequence[str] = KEYS,
) -> UsageQuery:
    """The question; `keys`: the dimensions that `by` may name. CommandError names what may be asked."""
    return UsageQuery(
        by=recordings.columns(by, keys),
        since=_day("--since", since),
        until=_day("--until", until),
        tenant=tenant,
        model=model,
        key=key,
    )


async def usage(url: str | None, asked: UsageQuery, console: Console, form: recordings.Form) -> None:
    """Print the sums. CommandError when no recorder answers."""
    async with bus.connected(bus.settings(url), "pointsman usage") as client:
        sums = await recordings.sums(client, asked, UsageSums, "keeps the sums")
        if not sums.rows:
            await _refuse_unknown(client, asked)
    if form != "table":
        recordings.print_rows(
            [plain(row, asked.by) for row in sums.rows], list(plain(UsageSum(), asked.by)), form, console
        )
        return
    console.print(table(sums, asked.by))
    for note in notes(sums):
        console.print(Text(note, "dim"), soft_wrap=True)


async def _refuse_unknown(client: Client, asked: UsageQuery) -> None:
    """CommandError for a model, tenant or key that no stored request has on any day."""
    for name in ("model", "tenant", "key"):
        value: str | None = getattr(asked, name)
        if value is None:
            continue
        every = await recordings.ask(client, UsageQuery(by=(name,)), UsageSums)
        known = sorted({str(getattr(row, name)) for row in every.rows if getattr(row, name)}) if every else []
        if every is None or every.more or value in known:
            continue
        listed = ", ".join(known[:_NAMED]) or "none yet"
        more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
        likely = did_you_mean(value, known)
        raise CommandError(
            f"--{name} {value}: the ledger has no request of this {name}{f'; {likely}' if likely else '.'}",
            f"It has requests of: {listed}{more}.",
        )


def plain(row: UsageSum, by: tuple[str, ...]) -> dict[str, str | int]:
    """A row for programs; `cost` is dollars in plain decimals."""
    keys = {name: str(getattr(row, name) or "") for name in ("day", *KEYS[:-1]) if name in by}
    counts = {name: int(getattr(row, name)) for name in (*_COUNTS, "estimated", "unpriced")}
    return {**keys, **counts, "cost": dollars(cost(row))}


def cost(row: UsageSum) -> int:
    """Nano-dollars; a recorder of an earlier version reports only dollars."""
    return row.cost_nanos or nanos(row.cost)


def table(sums: UsageSums, by: tuple[str, ...]) -> Table:
    """The rows, and their total where there are several."""
    keys = [name for name in ("day", *KEYS[:-1]) if name in by]
    counts = [name for name in _COUNTS if name not in _SELDOM or any(getattr(row, name) for row in sums.rows)]
    columns = [Column(name, overflow="fold", no_wrap=name == "day") for name in keys]
    shown = borderless(*columns, *numbers(*(_COUNTS[name] for name in counts), "cost"))
    for row in sums.rows:
        shown.add_row(*(str(getattr(row, name) or "-") for name in keys), *_numbers(row, counts))
    if len(sums.rows) > 1 and not sums.more:
        shown.add_row(*["total", *[""] * (len(keys) - 1)], *_numbers(total(sums.rows), counts), style="bold")
    return shown


def total(rows: tuple[UsageSum, ...]) -> UsageSum:
    names = [name for name, value in asdict(UsageSum()).items() if value == 0 and name != "cost_nanos"]
    sums = {name: sum(getattr(row, name) for row in rows) for name in names}
    return read_fields(UsageSum, {**sums, "cost_nanos": sum(cost(row) for row in rows)})


def notes(sums: UsageSums) -> list[str]:
    """Caveats for the reader of the numbers."""
    everything = total(sums.rows)
    found: list[str] = []
    if everything.estimated:
        requests = counted(everything.estimated, "request")
        found.append(f"Estimated, because no engine reported them in full: the tokens of {requests}.")
    if everything.unpriced:
        names = f": {', '.join(sums.unpriced_models)}" if sums.unpriced_models else ""
        requests = counted(everything.unpriced, "request")
        found.append(f"Without a price (`models.<name>.cost`): the model of {requests}{names}.")
    if sums.more:
        found.append(
            "There are more rows than one answer holds; narrow them down with --since, --tenant, --key or --model."
        )
    if ends := next((each for each in sums.lost if each.type == ResponseCompleted.address.type_id), None):
        requests = counted(ends.count, "request")
        found.append(
            f"Missing: the ends of {requests} between {moment(ends.from_ms)} and {moment(ends.to_ms)} never reached "
            "the stream of events; they have no record."
        )
    if sums.behind:
        found.append(f"The recorder is {counted(sums.behind, 'event')} behind.")
    return found


def _numbers(row: UsageSum, counts: list[str]) -> list[str]:
    return [*(f"{getattr(row, name):,}" for name in counts), f"${dollars(cost(row), 6)}"]


def _day(option: str, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise CommandError(f"{option} {text}: not a day.", "Write it as 2026-03-01; days are UTC.") from None
