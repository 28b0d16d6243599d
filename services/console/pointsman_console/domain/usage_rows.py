"""Sums of usage as a page shows them. Pure."""

from typing import Final

from pydantic import JsonValue

from pointsman_contracts.engine_time import EngineTimeSums
from pointsman_contracts.money import dollars
from pointsman_contracts.usage import UsageSum, UsageSums

DIMENSIONS: Final = ("tenant", "subject", "key", "model", "day")
ENGINE_TIME_DIMENSIONS: Final = (*DIMENSIONS, "pool", "engine")


def document(sums: UsageSums, by: tuple[str, ...]) -> dict[str, JsonValue]:
    """Rows with the dimensions that were asked for."""
    rows: list[JsonValue] = [_row(row, by) for row in sums.rows]
    return {
        "rows": rows,
        "by": list(by),
        "more": sums.more,
        "behind": sums.behind,
        "unpriced_models": list(sums.unpriced_models),
    }


def engine_time_document(sums: EngineTimeSums, by: tuple[str, ...]) -> JsonValue:
    """Rows with the dimensions that were asked for, and all time of the engines; `cost` is in dollars."""
    rows: list[JsonValue] = [
        {
            **{name: str(getattr(row, name) or "") for name in by},
            "state": row.state,
            "answers": row.answers,
            "estimated": row.estimated,
            "engine_seconds": row.time_us / 1e6,
            "share": row.time_us / sums.total_us if sums.total_us else 0.0,
            "cost": float(dollars(row.time_nanos)),
        }
        for row in sums.rows
    ]
    return {
        "rows": rows,
        "by": list(by),
        "more": sums.more,
        "behind": sums.behind,
        "engine_seconds": sums.total_us / 1e6,
        "cost": float(dollars(sums.total_nanos)),
    }


def _row(row: UsageSum, by: tuple[str, ...]) -> dict[str, JsonValue]:
    keys: dict[str, JsonValue] = {name: str(getattr(row, name) or "") for name in by}
    return {
        **keys,
        "requests": row.requests,
        "failed": row.failed,
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "completion_tokens": row.completion_tokens,
        "estimated": row.estimated,
        "unpriced": row.unpriced,
        "cost": float(dollars(row.cost_nanos)),
    }
