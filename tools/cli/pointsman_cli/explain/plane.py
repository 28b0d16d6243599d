"""The models of a joint choice: time, money and quality of each, and why one won."""

from collections.abc import Sequence

from rich.table import Table

from pointsman_contracts.model_choice import ModelPoint
from pointsman_contracts.money import dollars

_PLACES = 6


def plane(points: Sequence[ModelPoint]) -> Table:
    """One row for each model, the chosen one first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("    model", no_wrap=True)
    for name in ("first token", "answer", "others", "cached", "cost", "quality", "total"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("engine", no_wrap=True)
    table.add_column("verdict")
    for point in points:
        chosen = point.verdict.startswith("chosen")
        table.add_row(
            f"    {point.model}",
            _seconds(point.first_token_ms),
            _seconds(point.answer_ms),
            f"{point.others_ms / 1000:.2f} s" if point.time_from == "predicted" else "",
            f"{point.cached_tokens:,}",
            f"${dollars(point.cost, _PLACES)}",
            f"{point.quality:g}",
            "" if point.total is None else f"{point.total:.2f}",
            point.worker or point.place,
            f"{point.verdict} ({point.time_from})" if point.time_from == "measured" else point.verdict,
            style="bold green" if chosen else "dim" if point.total is None else "",
        )
    return table


def _seconds(time_ms: float | None) -> str:
    return "unknown" if time_ms is None else f"{time_ms / 1000:.2f} s"
