"""Service levels as a page shows them: how many answers kept theirs, by class, tenant and model. Pure."""

from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from pointsman_contracts.response import RequestRejected, ResponseCompleted
from pointsman_contracts.service_level import UNATTAINABLE
from pointsman_core.request_events import Event

MOST_ROWS: Final = 200
"""Further combinations of class, tenant and model count in the last row."""
_FURTHER: Final = "all others", "", ""


@dataclass(slots=True)
class LevelSum:
    """One row."""

    kept: int = 0
    missed: int = 0
    unknown: int = 0
    refused: int = 0
    tokens: int = 0
    """Of the answers that kept their level."""
    predicted: int = 0
    """Streams with a prediction, and the sums of its times and of those that came true."""
    predicted_ms: float = 0.0
    got_ms: float = 0.0
    promised_ms: float | None = None
    """To the first token, of the last request."""


class LevelSums:
    """Counts from when the page was opened."""

    def __init__(self) -> None:
        self._rows: Final[dict[tuple[str, str, str], LevelSum]] = {}

    def count_event(self, event: Event) -> None:
        """Count the end of a request with a service level. Others are ignored."""
        match event:
            case ResponseCompleted() if event.promise is not None:
                self._count_answer(event)
            case RequestRejected() if event.code == UNATTAINABLE:
                tenant = event.identity.tenant if event.identity is not None else ""
                self._row("", tenant, event.model or "").refused += 1
            case _:
                pass

    def _count_answer(self, event: ResponseCompleted) -> None:
        promise = event.promise
        if promise is None:
            return
        tenant = event.identity.tenant if event.identity is not None else ""
        row = self._row(promise.service_class, tenant, event.model or "")
        row.promised_ms = promise.ttft_ms
        if event.kept is None:
            row.unknown += 1
        elif event.kept:
            row.kept += 1
            row.tokens += event.usage.completion_tokens if event.usage is not None else 0
        else:
            row.missed += 1
        if promise.predicted_ttft_ms is not None and event.ttft_ms is not None:
            row.predicted += 1
            row.predicted_ms += promise.predicted_ttft_ms
            row.got_ms += event.ttft_ms

    def _row(self, level: str, tenant: str, model: str) -> LevelSum:
        key = level, tenant, model
        if key not in self._rows and len(self._rows) >= MOST_ROWS:
            key = _FURTHER
        return self._rows.setdefault(key, LevelSum())

    def list_rows(self) -> list[JsonValue]:
        """The rows, the least attainment first."""
        rows = sorted(self._rows.items(), key=lambda entry: (_share(entry[1]) or 0.0, entry[0]))
        return [
            {
                "class": level,
                "tenant": tenant,
                "model": model,
                "kept": row.kept,
                "missed": row.missed,
                "unknown": row.unknown,
                "refused": row.refused,
                "share": _share(row),
                "tokens": row.tokens,
                "promised_ms": row.promised_ms,
                "predicted_ms": row.predicted_ms / row.predicted if row.predicted else None,
                "got_ms": row.got_ms / row.predicted if row.predicted else None,
            }
            for (level, tenant, model), row in rows
        ]


def _share(row: LevelSum) -> float | None:
    judged = row.kept + row.missed
    return row.kept / judged if judged else None
