"""`pointsman levels`: how many answers kept their service level, from the recorder's sums."""

import time
from datetime import timedelta
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pointsman_cli import bus
from pointsman_cli.explain import recordings
from pointsman_cli.tables import borderless, folding, numbers
from pointsman_cli.words import counted, moment
from pointsman_contracts.attainment import AttainmentQuery, AttainmentSum, AttainmentSums
from pointsman_contracts.response import ResponseCompleted
from pointsman_core.why import spell_time

KEYS: Final = {"class": "service_class", "tenant": "tenant", "model": "model"}
"""Name of a column → field of a row."""
_COUNTS: Final = ("kept", "missed", "unknown", "refused", "tokens")


async def levels(url: str | None, by: str, since: timedelta, console: Console, *, as_json: bool) -> None:
    """Print the sums of the last `since`, grouped by the columns that `by` names."""
    names = recordings.columns(by, [*KEYS])
    since_ms = time.time_ns() // 1_000_000 - round(since.total_seconds() * 1000)
    asked = AttainmentQuery(by=tuple(KEYS[name] for name in names), since_ms=since_ms)
    async with bus.connected(bus.settings(url), "pointsman levels") as client:
        sums = await recordings.sums(client, asked, AttainmentSums, "keeps the sums")
    if as_json:
        rows = [
            {name: str(getattr(row, KEYS[name])) for name in names}
            | {name: int(getattr(row, name)) for name in (*_COUNTS, "predicted", "predicted_us", "got_us")}
            for row in sums.rows
        ]
        recordings.print_rows(rows, [], "json", console)
        return
    if sums.rows:
        console.print(table(sums, names))
    for note in notes(sums):
        console.print(Text(note, "dim"), soft_wrap=True)


def table(sums: AttainmentSums, names: tuple[str, ...]) -> Table:
    """The rows; times are means to the first token, of answers that had a prediction."""
    shown = borderless(*folding(*names), *numbers("kept", *_COUNTS[1:4], "kept tokens/s", "predicted", "got"))
    seconds = max(1.0, (sums.until_ms - sums.since_ms) / 1000)
    for row in sums.rows:
        judged = row.kept + row.missed + row.refused
        shown.add_row(
            *(str(getattr(row, KEYS[name]) or "-") for name in names),
            f"{row.kept / judged:.1%}" if judged else "-",
            *(f"{getattr(row, name):,}" for name in _COUNTS[1:4]),
            f"{row.tokens / seconds:,.1f}",
            _mean(row, row.predicted_us),
            _mean(row, row.got_us),
        )
    return shown


def notes(sums: AttainmentSums) -> list[str]:
    """The time that the rows cover, and what is missing in them."""
    found = [f"From {moment(sums.since_ms)} to {moment(sums.until_ms)}."]
    if not sums.rows:
        found.append("No request with a service level ended in this time: docs/service-levels.md says how to set one.")
    if sums.more:
        found.append("There are more rows than one answer holds: those with the most missed answers are shown.")
    if lost := sum(each.count for each in sums.lost if each.type == ResponseCompleted.address.type_id):
        found.append(f"Missing: the ends of {counted(lost, 'request')} never reached the stream of events.")
    if sums.behind:
        found.append(f"The recorder is {counted(sums.behind, 'event')} behind.")
    return found


def _mean(row: AttainmentSum, us: int) -> str:
    return spell_time(us / row.predicted / 1000) if row.predicted else "-"
