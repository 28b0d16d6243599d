"""The picture of a comparison: four figures of each policy, the time to the first token by prompt length, and the
slowdown by percentile."""
# matplotlib's stubs leave the types of further keyword arguments open.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pointsman_simulator.comparison import Compared
from pointsman_simulator.curves import PERCENTILES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Panel(NamedTuple):
    figure: str
    title: str
    unit: str
    form: str


_PANELS: Final = (
    _Panel("ttft_mean", "TTFT, mean", "ms", "{:.0f}"),
    _Panel("ttft_p99", "TTFT, p99", "ms", "{:.0f}"),
    _Panel("e2e_mean", "E2E, mean", "ms", "{:.0f}"),
    _Panel("reuse", "prompt tokens from a cache", "share of all", "{:.3f}"),
)
_SHOWN: Final = (10.0, 50.0, 90.0, 99.0, 99.9)
"""Percentiles on the axis of the slowdown."""
_LINES: Final = ("-", "--", ":", "-.")


def plot(results: Sequence[Compared], path: Path) -> bool:
    """Draw it. False when matplotlib isn't installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    bars = 1.6 + 0.45 * len(results)
    curves = any(run.slowdowns for compared in results for run in compared.runs)
    figure = Figure(figsize=(13, bars + (4.6 if curves else 0.0)), layout="constrained")
    grid = figure.add_gridspec(2 if curves else 1, 4, height_ratios=[bars, 4.6] if curves else None)
    first: Axes | None = None
    for position, panel in enumerate(_PANELS):
        axes = figure.add_subplot(grid[0, position], sharey=first)
        _bars(axes, results, panel, f"C{position}", named=first is None)
        first = first or axes
    if first is not None:
        # The axis is shared: turning it once puts the first policy on top everywhere.
        first.invert_yaxis()
    if curves:
        _by_length(figure.add_subplot(grid[1, :2]), results)
        _slowdowns(figure.add_subplot(grid[1, 2:]), results)
    figure.supxlabel("means over the seeds; the line of a bar goes from the least seed to the greatest", fontsize=8)
    figure.savefig(path, dpi=120)
    return True


def _bars(axes: "Axes", results: Sequence[Compared], panel: _Panel, color: str, *, named: bool) -> None:
    means = [compared.mean_of(panel.figure) for compared in results]
    spreads = [compared.spread_of(panel.figure) for compared in results]
    # The mean of equal numbers may miss them by the last bit, and no bar has a negative length.
    below = [max(0.0, mean - least) for mean, (least, _) in zip(means, spreads, strict=True)]
    above = [max(0.0, greatest - mean) for mean, (_, greatest) in zip(means, spreads, strict=True)]
    names = [compared.policy for compared in results]
    bars = axes.barh(names, means, xerr=[below, above], color=color, ecolor="#444444", capsize=2)
    axes.bar_label(bars, labels=[panel.form.format(mean) for mean in means], padding=4, fontsize=8)
    axes.margins(x=0.22)
    axes.tick_params(labelleft=named)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.unit)
    _plain(axes)


def _by_length(axes: "Axes", results: Sequence[Compared]) -> None:
    for number, compared in enumerate(results):
        tokens, ttft = compared.by_length()
        axes.plot(
            tokens, ttft, marker="o", markersize=3, label=compared.policy, color=_color(number), linestyle=_line(number)
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda tokens, _: f"{tokens:,.0f}")
    axes.yaxis.set_major_formatter(lambda ms, _: f"{ms:,.0f}")
    axes.set_xlabel("prompt, tokens")
    axes.set_ylabel("mean time to the first token, ms")
    axes.set_title("Time to the first token by prompt length")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    _plain(axes)


def _slowdowns(axes: "Axes", results: Sequence[Compared]) -> None:
    # Evenly spaced by the logarithm of what lies above a percentile, so that the tail is seen.
    places = -np.log10(1.0 - np.array(PERCENTILES) / 100.0)
    for number, compared in enumerate(results):
        if curves := [run.slowdowns for run in compared.runs if run.slowdowns]:
            axes.plot(
                places,
                np.array(curves, dtype=np.float64).mean(axis=0),
                label=compared.policy,
                color=_color(number),
                linestyle=_line(number),
            )
    axes.set_xticks((-np.log10(1.0 - np.array(_SHOWN) / 100.0)).tolist(), [f"{shown:g}" for shown in _SHOWN])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda times, _: f"{times:g}")
    axes.set_xlabel("percentile of the requests, %")
    axes.set_ylabel("slowdown: TTFT / time of the prompt alone, times")
    axes.set_title("Slowdown by percentile")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    _plain(axes)


def _color(number: int) -> str:
    return f"C{number % 10}"


def _line(number: int) -> str:
    return _LINES[number % len(_LINES)]


def _plain(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
