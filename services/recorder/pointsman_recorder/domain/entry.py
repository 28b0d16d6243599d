"""The stored form of an event."""

from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from pointsman_contracts.attainment import AttainmentSum
from pointsman_contracts.message import Part, read_part
from pointsman_contracts.regret import RegretSum, RequestsJudged
from pointsman_contracts.response import ResponseCompleted
from pointsman_recorder.domain.attainment_row import row_of_end
from pointsman_recorder.domain.numbers import MOST
from pointsman_recorder.domain.reading import check_texts
from pointsman_recorder.domain.regret_sums import regret_rows
from pointsman_recorder.domain.usage_record import Owed, records_of


class RecordedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of the stream."""

    key: str
    """Its identity, however often it is delivered."""
    request_id: str | None
    """None for an event that is about no request, or that can't be read."""
    at_ms: int
    type: str
    body: bytes
    """As it was published."""
    owed: tuple[Owed, ...]
    """The records due to the ledger, for the end of a request; else none."""
    regret: tuple[RegretSum, ...] = ()
    """The rows that judged requests add to the sums."""
    judge: str = ""
    """The name of the recorder that judged the requests."""
    trace: str | None = None
    """Id of the trace that it belongs to; None for an event that isn't sampled."""
    attained: AttainmentSum | None = None
    """The part of a request with a service level in the sums, for its end."""
    end: ResponseCompleted | None = None
    """The content, for the end of a request."""


JUDGED: Final = RequestsJudged.address.type_id
COMPLETED: Final = ResponseCompleted.address.type_id


class _Head(Part, frozen=True, kw_only=True):
    request_id: str | None = None
    at_ms: Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)] | None = None


def entry(
    kind: str, name: str, body: bytes, stored_ms: Callable[[], int], trace: str | None = None
) -> RecordedEvent | None:
    """The entry for a message's type, id, body and trace; None when it isn't a readable event.

    `stored_ms` says when the stream got it, for an event without a time of its own.
    """
    try:
        check_texts(body)
        if kind == COMPLETED:
            end = ResponseCompleted.decode(body)
            records = records_of(end)
            record = records[0]
            owed = tuple([Owed(each.key, each.identity.tenant, each.encode(), each.at_ms, each) for each in records])
            return RecordedEvent(
                key=name,
                request_id=record.request_id,
                at_ms=record.at_ms,
                type=kind,
                body=body,
                owed=owed,
                trace=trace,
                attained=row_of_end(end),
                end=end,
            )
        judged = RequestsJudged.decode(body) if kind == JUDGED else None
        regret = () if judged is None else regret_rows(judged)
        head = read_part(_Head, body)
    except ValueError:
        return None
    at_ms = stored_ms() if head.at_ms is None else head.at_ms
    return RecordedEvent(
        key=name,
        request_id=head.request_id,
        at_ms=at_ms,
        type=kind,
        body=body,
        owed=(),
        regret=regret,
        judge="" if judged is None else judged.judge,
        trace=trace,
    )
