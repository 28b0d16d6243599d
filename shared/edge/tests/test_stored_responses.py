"""Each response of `/v1/responses` is kept by one engine, for one client."""

import pytest

from pointsman_apis import named
from pointsman_contracts.identity import Identity
from pointsman_core.config import load
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_edge.telling.stored_responses import StoredResponses
from pointsman_testing import builders

OPEN = load({"pools": {"p": {"models": ["m"]}}})
CLOSED = load({"pools": {"p": {"models": ["m"]}}, "preprocessing": [{"use": "api-key-auth"}]})
MINE, OTHERS = Identity(tenant="a", subject="x"), Identity(tenant="b", subject="x")


def record(body: bytes, *, identity: Identity | None = None, status: int = 200, worker: str = "w1") -> RequestRecord:
    told = RequestRecord("r", named("responses"), compile_policy(OPEN, 1), 0.0)
    told.record_decision(builders.decision("r", model="m", identity=identity), 1.0)
    told.worker = worker
    told.tail = named("responses").usage()
    told.tail.follow_bytes(body)
    told.end("ok", status)
    return told


WHOLE = b'{"id": "resp_1", "object": "response", "metadata": {"id": "resp_9"}}'
STREAM = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'


@pytest.mark.parametrize("body", [WHOLE, STREAM])
def test_a_response_is_found_at_the_worker_that_made_it(body: bytes) -> None:
    responses = StoredResponses()
    responses.remember_response(record(body))
    stored = responses.find_response("resp_1", OPEN)
    assert stored is not None
    assert (stored.model, stored.worker) == ("m", "w1")
    assert responses.find_response("resp_9", OPEN) is None


def test_the_first_note_of_an_id_counts_and_an_error_is_no_response() -> None:
    responses = StoredResponses()
    responses.remember_response(record(WHOLE, status=500, worker="w0"))
    responses.remember_response(record(WHOLE, worker="w1"))
    responses.remember_response(record(WHOLE, worker="w2"))
    stored = responses.find_response("resp_1", OPEN)
    assert stored is not None
    assert stored.worker == "w1"


def test_a_response_is_there_for_its_own_client_alone() -> None:
    responses = StoredResponses()
    responses.remember_response(record(WHOLE, identity=MINE))
    stored = responses.find_response("resp_1", CLOSED)
    assert stored is not None
    responses.refuse_other_client(stored, MINE)
    with pytest.raises(Refusal) as refused:
        responses.refuse_other_client(stored, OTHERS)
    assert (refused.value.status, refused.value.code) == (404, "response_not_found")


def test_an_unknown_response_is_no_ones_where_clients_have_identities() -> None:
    with pytest.raises(Refusal):
        StoredResponses().find_response("resp_1", CLOSED)
    assert StoredResponses().find_response("resp_1", OPEN) is None
