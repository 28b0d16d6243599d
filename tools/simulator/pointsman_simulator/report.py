"""Results of a comparison as a table and as data."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from pointsman_simulator.comparison import Compared
from pointsman_simulator.plot import plot


class _Column(NamedTuple):
    figure: str
    group: str
    title: str
    form: str
    width: int


_COLUMNS: Final = (
    _Column("ttft_mean", "TTFT", "mean", "{:.1f}", 7),
    _Column("ttft_p50", "TTFT", "p50", "{:.0f}", 6),
    _Column("ttft_p90", "TTFT", "p90", "{:.0f}", 6),
    _Column("ttft_p99", "TTFT", "p99", "{:.0f}", 6),
    _Column("itl_mean", "ITL", "mean", "{:.2f}", 6),
    _Column("e2e_mean", "E2E", "mean", "{:.0f}", 6),
    _Column("e2e_p99", "E2E", "p99", "{:.0f}", 6),
    _Column("regret_mean", "regret", "mean", "{:.1f}", 7),
    _Column("reuse", "", "reuse", "{:.3f}", 6),
    _Column("imbalance", "im-", "balance", "{:.3f}", 8),
)
_SESSION_COLUMNS: Final = (
    *(column for column in _COLUMNS if column.figure not in {"itl_mean", "e2e_p99", "imbalance"}),
    _Column("session_p95", "session", "p95", "{:.0f}", 9),
    _Column("reuse_possible", "of all", "reuse", "{:.3f}", 7),
)
"""The figures of traces with sessions: the time of a whole session, and the reuse as a share of what one endless cache
has."""
_NAME_WIDTH: Final = 16


def _columns(*, sessions: bool) -> tuple[_Column, ...]:
    return _SESSION_COLUMNS if sessions else _COLUMNS


def heading(*, sessions: bool = False) -> str:
    """The two lines above the rows of the table; `sessions`: whether the trace has any. Times are in ms. At most 80
    columns, as the rows of names that aren't longer than usual."""
    columns = _columns(sessions=sessions)
    groups = ["", *(column.group for column in columns)]
    # A group's name stands above its first column.
    above = [group if group != groups[index] else "" for index, group in enumerate(groups[1:])]
    first = "".join(group.rjust(column.width) for group, column in zip(above, columns, strict=True))
    second = "".join(column.title.rjust(column.width) for column in columns)
    return f"{' ' * _NAME_WIDTH}{first}\n{'policy'.ljust(_NAME_WIDTH)}{second}"


def row(compared: Compared) -> str:
    """Means over the seeds."""
    columns = _columns(sessions=compared.has_sessions)
    cells = (_cell(column, compared.mean_of(column.figure)).rjust(column.width) for column in columns)
    return f"{compared.policy:<{_NAME_WIDTH - 1}} {''.join(cells)}"


def _cell(column: _Column, value: float) -> str:
    """The figure, with a blank before it. A time that is too long for that is in seconds."""
    text = column.form.format(value)
    return text if len(text) < column.width else f"{value / 1000:.0f}s"


def ranges(compared: Compared) -> str:
    """Least and greatest of the two figures that policies are judged by, over the seeds."""
    parts: list[str] = []
    for figure, title in (("ttft_mean", "TTFT"), ("e2e_mean", "E2E")):
        least, greatest = compared.spread_of(figure)
        parts.append(f"{title} {least:.1f} to {greatest:.1f}")
    return f"{compared.policy}: {', '.join(parts)} over {len(compared.runs)} seeds"


def as_markdown(results: Sequence[Compared]) -> str:
    columns = _columns(sessions=any(compared.has_sessions for compared in results))
    lines = [
        "| policy | " + " | ".join(f"{column.group} {column.title}".strip() for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for compared in results:
        cells = [column.form.format(compared.mean_of(column.figure)) for column in columns]
        lines.append(f"| {compared.policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def save(results: Sequence[Compared], about: dict[str, object], folder: Path) -> list[Path]:
    """Write `results.json`, `results.md` and `results.png`. Returns the written files: the plot needs matplotlib."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"about": about, "results": {c.policy: [asdict(run) for run in c.runs] for c in results}}
    written = [folder / "results.json", folder / "results.md"]
    written[0].write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
    told = "".join(f"- {key}: {value}\n" for key, value in about.items())
    written[1].write_text(f"{told}\nMeans over the seeds; times in ms.\n\n{as_markdown(results)}")
    picture = folder / "results.png"
    if plot(results, picture):
        written.append(picture)
    return written
