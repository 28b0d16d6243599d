"""Attainment of service levels as a page shows it. Pure."""

from typing import Final

from pydantic import JsonValue

from pointsman_contracts.attainment import AttainmentSum, AttainmentSums
from pointsman_contracts.response import ResponseCompleted

DIMENSIONS: Final = ("service_class", "tenant", "model")


def level_document(sums: AttainmentSums, by: tuple[str, ...]) -> JsonValue:
    """Rows with the dimensions that were asked for, the least attainment first."""
    seconds = max(1.0, (sums.until_ms - sums.since_ms) / 1000)
    rows: list[JsonValue] = [_row(row, by, seconds) for row in sorted(sums.rows, key=_least_kept)]
    return {
        "rows": rows,
        "by": list(by),
        "since_ms": sums.since_ms,
        "until_ms": sums.until_ms,
        "more": sums.more,
        "behind": sums.behind,
        "lost": sum(each.count for each in sums.lost if each.type == ResponseCompleted.address.type_id),
    }


def _least_kept(row: AttainmentSum) -> tuple[float, int]:
    """Rows of which nothing is known stand last."""
    judged = row.kept + row.missed + row.refused
    return (row.kept / judged if judged else 2.0, -judged)


def _row(row: AttainmentSum, by: tuple[str, ...], seconds: float) -> JsonValue:
    judged = row.kept + row.missed + row.refused
    keys: dict[str, JsonValue] = {name: str(getattr(row, name) or "") for name in by}
    return {
        **keys,
        "kept": row.kept,
        "missed": row.missed,
        "unknown": row.unknown,
        "refused": row.refused,
        "share": row.kept / judged if judged else None,
        "tokens_a_second": row.tokens / seconds,
        "promised_ms": _mean_ms(row.promised_us, row.promised),
        "predicted_ms": _mean_ms(row.predicted_us, row.predicted),
        "got_ms": _mean_ms(row.got_us, row.predicted),
    }


def _mean_ms(us: int, count: int) -> float | None:
    return us / count / 1000 if count else None
