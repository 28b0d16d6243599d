"""Files and batches as OpenAI's and Anthropic's APIs show them."""

from datetime import UTC, datetime
from typing import Final

from pointsman_contracts.batch import ENDED, BatchRecord, StoredFile

Document = dict[str, object]
BATCHES_PATH: Final = "/v1/messages/batches"


def file_object(file: StoredFile) -> Document:
    """OpenAI's file object."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": _seconds(file.created_ms),
        "expires_at": _seconds(file.expires_ms),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_object(batch: BatchRecord) -> Document:
    """OpenAI's batch object."""
    ended = {batch.status: _seconds(batch.ended_ms)} if batch.status in ENDED else {}
    errors = [
        {"code": each.code, "line": each.line, "message": each.message, "param": each.param} for each in batch.problems
    ]
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.window,
        "status": batch.status,
        "output_file_id": batch.output_file,
        "error_file_id": batch.error_file,
        "created_at": _seconds(batch.created_ms),
        "in_progress_at": _seconds(batch.in_progress_ms),
        "expires_at": _seconds(batch.expires_ms),
        "finalizing_at": _seconds(batch.finalizing_ms),
        "completed_at": ended.get("completed"),
        "failed_at": ended.get("failed"),
        "expired_at": ended.get("expired"),
        "cancelling_at": _seconds(batch.cancelling_ms),
        "cancelled_at": ended.get("cancelled"),
        # OpenAI has no count of lines that never ran.
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed + batch.expired + batch.cancelled,
        },
        "metadata": batch.metadata,
    }


def message_batch_object(batch: BatchRecord) -> Document:
    """Anthropic's message batch."""
    ended = batch.status in ENDED
    counted = batch.completed + batch.failed + batch.expired + batch.cancelled
    state = "ended" if ended else "canceling" if batch.status == "cancelling" else "in_progress"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": state,
        "request_counts": {
            "processing": 0 if ended else max(0, batch.total - counted),
            "succeeded": batch.completed,
            "errored": batch.failed,
            "canceled": batch.cancelled,
            "expired": batch.expired,
        },
        "ended_at": _moment(batch.ended_ms),
        "created_at": _moment(batch.created_ms),
        "expires_at": _moment(batch.expires_ms),
        "archived_at": None,
        "cancel_initiated_at": _moment(batch.cancelling_ms),
        # Relative: the service doesn't know by which name, and over which protocol, its client came.
        "results_url": f"{BATCHES_PATH}/{batch.id}/results" if ended else None,
    }


def list_object(data: list[Document], *, has_more: bool, openai: bool = True) -> Document:
    """A page of a list, of either API."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    kind: Document = {"object": "list"} if openai else {}
    return {**kind, "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def _seconds(ms: int | None) -> int | None:
    return None if ms is None else ms // 1000


def _moment(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat().replace("+00:00", "Z")
