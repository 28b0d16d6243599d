"""The picture of a twin: recorded against predicted times, by percentile and over time, and the policies."""
# matplotlib's stubs leave the types of further keyword arguments open.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pointsman_simulator.twin.anew import PolicyFigures
from pointsman_simulator.twin.build import Twin
from pointsman_simulator.twin.what_if import WhatIf

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#444444"


def plot(twin: Twin, figures: Sequence[PolicyFigures], change: WhatIf, path: Path) -> bool:
    """Draw it. False when matplotlib isn't installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rows = 2 if figures else 1
    figure = Figure(figsize=(12, 4.4 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 2)
    _percentiles(figure.add_subplot(grid[0, 0]), twin)
    _over_time(figure.add_subplot(grid[0, 1]), twin)
    if figures:
        _policies(figure.add_subplot(grid[1, 0]), figures, "ttft_mean", f"Mean TTFT of each policy, {change}")
        _policies(figure.add_subplot(grid[1, 1]), figures, "e2e_mean", f"Mean E2E of each policy, {change}")
    word = "trust" if twin.verdict.is_trusted else "don't trust"
    figure.suptitle(f"Twin of pool {twin.recording.pool}: {len(twin.recording.requests):,} requests; verdict: {word}")
    figure.savefig(path, dpi=110)
    return True


def _percentiles(axes: "Axes", twin: Twin) -> None:
    shares = np.linspace(0.01, 0.995, 200)
    recorded = twin.recorded.ttft[np.isfinite(twin.recorded.ttft)]
    axes.plot(shares * 100, np.quantile(recorded, shares), color=_INK, linewidth=2, label="recorded")
    for number, run in enumerate(twin.seeds):
        known = run.ttft[np.isfinite(twin.recorded.ttft)]
        label = "the policy anew, a line for each seed" if number == 0 else None
        axes.plot(shares * 100, np.quantile(known, shares), color="C0", linewidth=1, alpha=0.7, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("percentile of the requests, %")
    axes.set_ylabel("time to the first token, ms")
    axes.set_title("Time to the first token by percentile")
    axes.legend(frameon=False)
    _plain(axes)


def _over_time(axes: "Axes", twin: Twin) -> None:
    minutes = [each.at_ms / 60_000 for each in twin.slices]
    axes.plot(
        minutes, [each.recorded_ttft for each in twin.slices], color=_INK, marker="o", markersize=3, label="recorded"
    )
    axes.plot(
        minutes,
        [each.predicted_ttft for each in twin.slices],
        color="C1",
        marker="o",
        markersize=3,
        label="fitted engines, choices as recorded",
    )
    for change in twin.changes:
        axes.axvline(change.at_ms / 60_000, color="C3", linestyle="--")
        axes.annotate(
            f"{change.engine}: {change.factor:.2f} x as long",
            (change.at_ms / 60_000, 0.97),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            color="C3",
            rotation=90,
            va="top",
            ha="right",
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes since the recording began")
    axes.set_ylabel("mean time to the first token, ms")
    axes.set_title("Over time")
    axes.legend(frameon=False)
    _plain(axes)


def _policies(axes: "Axes", figures: Sequence[PolicyFigures], of: str, title: str) -> None:
    intervals = [getattr(each, of) for each in figures]
    values = [each.value for each in intervals]
    bars = axes.barh(
        [each.policy for each in figures],
        values,
        xerr=[
            [each.value - each.least for each in intervals],
            [each.greatest - each.value for each in intervals],
        ],
        color="C0" if of == "ttft_mean" else "C2",
        ecolor=_INK,
        capsize=3,
    )
    axes.bar_label(bars, labels=[f"{value:,.0f}" for value in values], padding=4, fontsize=8)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_xlabel("ms; the line is the 95 % interval")
    axes.set_title(title)
    _plain(axes)


def _plain(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
