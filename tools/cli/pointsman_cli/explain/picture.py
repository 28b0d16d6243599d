"""`pointsman explain --png`: one decision as a picture. Candidates with their scores as bars, why filters removed
others, the costs in hindsight, and the times of the request."""

# matplotlib's stubs leave keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pointsman_cli.words import CommandError
from pointsman_contracts.regret import JudgedRequest
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import ProfileRun, RequestScheduled
from pointsman_core import why
from pointsman_core.request_events import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN: Final = 12
"""Candidates."""
_HUES: Final = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Paul Tol's bright scheme, which readers without colour vision tell apart: https://personal.sron.nl/~pault/."""
_WORDS_WIDTH: Final = 70


class Colours(NamedTuple):
    """Colours of a picture."""

    paper: str
    ink: str
    faint: str


LIGHT: Final = Colours("#ffffff", "#1c1c1c", "#6b6b6b")
DARK: Final = Colours("#16181d", "#f0f0f0", "#a0a4ad")


def draw(path: Path, told: Sequence[Event], judged: JudgedRequest | None, *, dark: bool) -> None:
    """Write the picture. CommandError without a decision, or without matplotlib."""
    decision = next((event for event in told if isinstance(event, RequestScheduled) and event.runs), None)
    run = why.primary(decision) if decision is not None else None
    if decision is None or run is None:
        raise CommandError("there is no scheduler's decision to draw for this request.", "Without --png: its events.")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CommandError("matplotlib isn't installed.", "uv pip install matplotlib") from None
    look = DARK if dark else LIGHT
    end = next((event for event in told if isinstance(event, ResponseCompleted)), None)
    verdicts = why.verdicts(run)[:_SHOWN]
    rows = len(verdicts)
    heights = [0.55 + 0.42 * rows, 0.55 + 0.42 * rows if judged else 0.0, 1.1]
    panels = [height for height in heights if height]
    figure = Figure(figsize=(11, sum(panels) + 1.9), layout="constrained", facecolor=look.paper)
    axes: list[Axes] = figure.subplots(len(panels), 1, height_ratios=panels, squeeze=False)[:, 0].tolist()
    for each in axes:
        _quiet(each, look)
    title = f"{decision.request_id}  →  {decision.endpoints[0]}"
    figure.suptitle(title, x=0.01, ha="left", color=look.ink, fontsize=15, weight="bold")
    _scores(axes[0], run, verdicts, look)
    if judged is not None:
        _costs(axes[1], judged, look)
    _timeline(axes[-1], decision, end, look)
    figure.savefig(path, dpi=130, facecolor=look.paper)


def _quiet(axes: "Axes", look: Colours) -> None:
    axes.set_facecolor(look.paper)
    axes.tick_params(colors=look.ink, length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _title(axes: "Axes", text: str, look: Colours) -> None:
    axes.set_title(text, loc="left", color=look.ink, fontsize=11, weight="bold")


def _scores(axes: "Axes", run: ProfileRun, verdicts: Sequence[why.CandidateVerdict], look: Colours) -> None:
    """Weighted scores as stacked bars; words beside them."""
    columns = run.candidates
    widest = max((total or 0.0 for total in columns.totals), default=0.0) or 1.0
    for place, verdict in enumerate(verdicts):
        row, left = columns.workers.index(verdict.worker), 0.0
        for number, (scorer, scores) in enumerate(columns.scores.items()):
            part = run.weights.get(scorer, 1.0) * (scores[row] or 0.0)
            label = f"{scorer} ×{run.weights.get(scorer, 1.0):g}" if place == 0 else None
            axes.barh(place, part, left=left, color=_HUES[number % len(_HUES)], height=0.6, label=label)
            left += part
        total = "" if verdict.total is None else f"{verdict.total:.2f}  "
        words = verdict.words if len(verdict.words) <= _WORDS_WIDTH else f"{verdict.words[:_WORDS_WIDTH]}…"
        chosen = verdict.words == "chosen"
        axes.text(
            left + widest * 0.01, place, total + words, va="center", fontsize=9,
            color=look.ink if chosen else look.faint, weight="bold" if chosen else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(verdicts)), [verdict.worker for verdict in verdicts])
    axes.set_xlim(0, widest * 1.9)
    axes.set_xticks([])
    axes.invert_yaxis()
    left_out = len(columns.workers) - len(verdicts) + columns.omitted
    more = f"; {left_out} more candidates" if left_out else ""
    _title(axes, f"Scores of profile {run.profile}, weighted{more}", look)
    if columns.scores:
        legend = axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), fontsize=9, frameon=False, ncols=4)
        for text in legend.get_texts():
            text.set_color(look.ink)


def _costs(axes: "Axes", judged: JudgedRequest, look: Colours) -> None:
    """Costs with what is known since."""
    chosen = judged.choices[0].worker if judged.choices else ""
    workers = list(judged.costs_us)[:_SHOWN]
    widest = max(judged.costs_us[worker] for worker in workers) / 1e3 or 1.0
    for place, worker in enumerate(workers):
        cost = judged.costs_us[worker] / 1e3
        axes.barh(place, cost, color=_HUES[0] if worker == chosen else _HUES[6], height=0.6)
        note = f"{cost:,.1f} ms{', chosen' if worker == chosen else ''}"
        ink = look.ink if worker == chosen else look.faint
        axes.text(cost + widest * 0.01, place, note, va="center", fontsize=9, color=ink)
    axes.set_yticks(range(len(workers)), workers)
    axes.set_xlim(0, widest * 1.9)
    axes.set_xticks([])
    axes.invert_yaxis()
    regret = judged.choices[0].regret_us / 1e3 if judged.choices else 0.0
    _title(axes, f"Cost with what is known now: regret {regret:,.1f} ms", look)


def _timeline(axes: "Axes", decision: RequestScheduled, end: ResponseCompleted | None, look: Colours) -> None:
    """From receiving the request to its end, in milliseconds."""
    waited = decision.queued_ms + decision.unbound_ms
    decided = end.decided_ms if end is not None else waited
    spans: list[tuple[str, float]] = [("stages", max(0.0, decided - waited))]
    if waited:
        spans.append(("waited for an engine", waited))
    if end is not None and end.ttft_ms is not None:
        spans += [("to the first token", max(0.0, end.ttft_ms - decided)), ("answer", end.duration_ms - end.ttft_ms)]
    elif end is not None:
        spans.append(("to the end", max(0.0, end.duration_ms - decided)))
    left = 0.0
    for number, (name, took) in enumerate(spans):
        axes.barh(0, took, left=left, color=_HUES[number], height=0.5, label=f"{name} {took:,.1f} ms")
        left += took
    axes.set_yticks([])
    axes.set_xlim(0, left or 1.0)
    axes.set_xlabel("milliseconds since the request came", color=look.faint, fontsize=9)
    _title(axes, f"Times{'' if end is None else f': {end.status} {end.outcome}'}", look)
    legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.55), fontsize=9, frameon=False, ncols=len(spans))
    for text in legend.get_texts():
        text.set_color(look.ink)
