"""Sums of usage as a page shows them. Pure."""

from typing import Final

from pydantic import JsonValue

from pointsman_contracts.money import dollars
from pointsman_contracts.usage import UsageSum, UsageSums

DIMENSIONS: Final = ("tenant", "subject", "key", "model", "day")


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
