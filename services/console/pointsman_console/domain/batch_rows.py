"""Batches as their page shows them: progress, pace, and when they will have ended. Pure."""

from collections.abc import Iterable
from typing import Final

from pydantic import JsonValue

from pointsman_contracts.batch import ENDED, BatchRecord

MOST: Final = 500
"""Rows that the page gets: running batches first, then the newest."""


def list_batch_rows(batches: Iterable[BatchRecord], now_ms: int) -> JsonValue:
    """The document of the page; `now_ms` in unix milliseconds."""
    found = sorted(batches, key=lambda each: (each.status in ENDED, -each.created_ms, each.id))
    rows: list[JsonValue] = [_row(each, now_ms) for each in found[:MOST]]
    return {"rows": rows, "count": len(found), "running": sum(each.status not in ENDED for each in found)}


def _row(batch: BatchRecord, now_ms: int) -> JsonValue:
    done = batch.completed + batch.failed + batch.expired + batch.cancelled
    ends_ms = foresee_end(batch, now_ms)
    return {
        "id": batch.id,
        "api": batch.api,
        "owner": batch.owner.partition(":")[2],
        "endpoint": batch.endpoint,
        "status": batch.status,
        "total": batch.total,
        "done": done,
        "failed": batch.failed,
        "share": round(done / batch.total, 4) if batch.total else None,
        "created_ms": batch.created_ms,
        "ended_ms": batch.ended_ms,
        "expires_ms": batch.expires_ms,
        "ends_ms": ends_ms,
        "late": ends_ms is not None and ends_ms > batch.expires_ms,
        "problem": _problem(batch),
    }


def _problem(batch: BatchRecord) -> str | None:
    """The first one, with its line."""
    if not batch.problems:
        return None
    first = batch.problems[0]
    return first.message if first.line is None else f"Line {first.line}: {first.message}"


def foresee_end(batch: BatchRecord, now_ms: int) -> int | None:
    """When all lines will be done at the pace so far, in unix milliseconds; None for a batch that doesn't run, and
    before its first result."""
    done = batch.completed + batch.failed
    if batch.status != "in_progress" or batch.in_progress_ms is None or not done:
        return None
    return now_ms + round(max(0, now_ms - batch.in_progress_ms) / done * max(0, batch.total - done))
