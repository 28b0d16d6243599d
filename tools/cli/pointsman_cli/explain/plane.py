"""The models of a joint choice: time, money and quality of each, and why one won."""

from collections.abc import Sequence

from rich.table import Table

from pointsman_cli.tables import borderless, numbers, unbroken
from pointsman_contracts.model_choice import ModelPoint
from pointsman_contracts.money import dollars

_PLACES = 6


def plane(points: Sequence[ModelPoint]) -> Table:
    """One row for each model, the chosen one first."""
    figures = numbers("first token", "answer", "others", "cached", "cost", "quality", "total")
    table = borderless(*unbroken("    model"), *figures, *unbroken("engine"), "verdict")
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
