"""Results of a comparison as a table, as data, and as a plot."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from pointsman_simulator.comparison import Compared


class _Column(NamedTuple):
    figure: str
    title: str
    form: str


_COLUMNS: Final = (
    _Column("ttft_mean", "TTFT mean", "{:.1f}"),
    _Column("ttft_p50", "p50", "{:.0f}"),
    _Column("ttft_p90", "p90", "{:.0f}"),
    _Column("ttft_p99", "p99", "{:.0f}"),
    _Column("itl_mean", "ITL mean", "{:.2f}"),
    _Column("e2e_mean", "E2E mean", "{:.0f}"),
    _Column("e2e_p99", "E2E p99", "{:.0f}"),
    _Column("reuse", "reuse", "{:.4f}"),
    _Column("imbalance", "imbalance", "{:.3f}"),
)
_NAME_WIDTH: Final = 16
_PLOTTED: Final = (
    ("ttft_mean", "TTFT mean, ms"),
    ("ttft_p99", "TTFT p99, ms"),
    ("e2e_mean", "E2E mean, ms"),
    ("reuse", "reuse"),
)


def heading() -> str:
    """The line above the rows of the table; times are in ms."""
    return "  ".join(["policy".ljust(_NAME_WIDTH), *(column.title.rjust(9) for column in _COLUMNS)])


def row(compared: Compared) -> str:
    """Means over the seeds."""
    cells = [column.form.format(compared.mean(column.figure)).rjust(9) for column in _COLUMNS]
    return "  ".join([compared.policy.ljust(_NAME_WIDTH), *cells])


def ranges(compared: Compared) -> str:
    """Least and greatest of the two figures that policies are judged by, over the seeds."""
    parts: list[str] = []
    for figure, title in (("ttft_mean", "TTFT"), ("e2e_mean", "E2E")):
        least, greatest = compared.spread(figure)
        parts.append(f"{title} {least:.1f} to {greatest:.1f}")
    return f"{compared.policy}: {', '.join(parts)} over {len(compared.runs)} seeds"


def as_markdown(results: Sequence[Compared]) -> str:
    lines = [
        "| policy | " + " | ".join(column.title for column in _COLUMNS) + " |",
        "|---" * (len(_COLUMNS) + 1) + "|",
    ]
    for compared in results:
        cells = [column.form.format(compared.mean(column.figure)) for column in _COLUMNS]
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
    plot = folder / "results.png"
    if _plot(results, plot):
        written.append(plot)
    return written


def _plot(results: Sequence[Compared], path: Path) -> bool:
    """False when matplotlib isn't installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(11, 1.5 + 0.45 * len(results)), layout="constrained")
    names = [compared.policy for compared in results]
    panels = (
        ("ttft_mean", "TTFT mean, ms"),
        ("ttft_p99", "TTFT p99, ms"),
        ("e2e_mean", "E2E mean, ms"),
        ("reuse", "reuse"),
    )
    for position, (axes, (quantity, title)) in enumerate(
        zip(figure.subplots(1, len(panels), sharey=True).tolist(), panels, strict=True)
    ):
        means = [compared.mean(quantity) for compared in results]
        spreads = [compared.spread(quantity) for compared in results]
        # The mean of equal numbers may miss them by the last bit, and no bar has a negative length.
        below = [max(0.0, mean - least) for mean, (least, _) in zip(means, spreads, strict=True)]
        above = [max(0.0, greatest - mean) for mean, (_, greatest) in zip(means, spreads, strict=True)]
        axes.barh(names, means, xerr=[below, above], color=f"C{position}")
        axes.set_title(title)
    # The axis is shared: turning it once puts the first policy on top everywhere.
    figure.axes[0].invert_yaxis()
    figure.savefig(path, dpi=120)  # pyright: ignore[reportUnknownMemberType] - matplotlib's own stub
    return True
