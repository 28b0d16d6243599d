"""Has response processors follow an answer from an engine or provider."""

from pointsman_apis.usage import UsageTail
from pointsman_edge.edge import Edge
from pointsman_edge.sending.header_edits import edited_answer_headers
from pointsman_edge.telling.following import begin_answer
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_frontend.adapters.http_turn import Headers


def follow_answer(edge: Edge, record: RequestRecord, status: int, stream: bool, headers: Headers) -> UsageTail:
    """The tail of an answer whose head is here, which the processors of its profile follow. Their edits are made to
    `headers`."""
    before = record.answer_headers
    tail = begin_answer(record, edge.processor_failures, status, stream, headers)
    if record.answer_headers is not before:
        headers[:] = edited_answer_headers(headers, record.answer_headers)
    return tail
