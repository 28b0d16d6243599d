"""Each response of `/v1/responses` is kept by one engine, for one client."""

import asyncio

import orjson
import pytest
from msgspec.structs import replace

from pointsman_apis import named
from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import Target
from pointsman_contracts.kept_response import KeptResponse
from pointsman_contracts.reply import Rejection
from pointsman_core.config import load
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.taking_in.bodies import HeldBody
from pointsman_edge.taking_in.previous_response import previous_response
from pointsman_edge.telling.kept_responses import MOST_WRITES, KeptResponses
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_edge.telling.stored_responses import LONGEST_ID, MOST_TOKENS, StoredResponse, StoredResponses
from pointsman_testing import builders, eventually
from pointsman_testing.fake_bucket import FakeBucket

OPEN = load({"pools": {"p": {"models": ["m"]}}})
CLOSED = load({"pools": {"p": {"models": ["m"]}}, "preprocessing": [{"use": "api-key-auth"}]})
MINE, OTHERS = Identity(tenant="a", subject="x"), Identity(tenant="b", subject="x")
WHOLE = b'{"id": "resp_1", "object": "response", "metadata": {"id": "resp_9"}}'
STREAM = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'


def record(
    body: bytes = WHOLE,
    *,
    identity: Identity | None = None,
    status: int = 200,
    worker: str = "w1",
    sent: bytes = b"{}",
) -> RequestRecord:
    told = RequestRecord("r", named("responses"), compile_policy(OPEN, 1), 0.0)
    told.record_decision(builders.decision("r", model="m", identity=identity), 1.0)
    told.worker = worker
    told.held = HeldBody("r", sent, sent)
    told.tail = named("responses").usage()
    told.tail.follow_bytes(body)
    told.end("ok", status)
    return told


def rejection(pool: str, code: str = "unknown_worker", identity: Identity | None = None) -> Rejection:
    return Rejection(
        request_id="r",
        stage="scheduler",
        status=400,
        type="t",
        code=code,
        message="-",
        target=Target(model="m", pool=pool),
        identity=identity,
    )


def whole_with(prompt: object, answer: object) -> bytes:
    usage = {"input_tokens": prompt, "output_tokens": answer, "total_tokens": 0}
    return orjson.dumps({"id": "resp_1", "object": "response", "status": "completed", "usage": usage})


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (whole_with(700, 81), 781), (WHOLE, None), (whole_with(0, 81), None), (whole_with("7", 81), None),
        (whole_with(-700, 81), None), (whole_with(MOST_TOKENS, 1), None), (whole_with(10**18, 1), None),
    ],
)  # fmt: skip
async def test_the_tokens_of_a_response_are_those_that_its_engine_reported_if_these_can_be_right(
    body: bytes, tokens: int | None
) -> None:
    bucket = FakeBucket()
    answered = record(body)
    answered.settle()
    StoredResponses(KeptResponses(bucket)).remember_response(answered, "")
    await eventually(lambda: bool(bucket.entries))
    assert (await stored_in(StoredResponses(KeptResponses(bucket)))).kept.tokens == tokens


async def test_the_tokens_of_an_answer_that_broke_off_arent_known() -> None:
    responses = StoredResponses()
    broken = record(whole_with(700, 81))
    broken.outcome = "cut_off"
    broken.settle()
    responses.remember_response(broken, "")
    assert (await stored_in(responses)).kept.tokens is None


async def stored_in(responses: StoredResponses, name: str = "resp_1") -> StoredResponse:
    stored = await responses.find_response(name, CLOSED, continued=True)
    assert stored is not None
    return stored


async def refusal_to(responses: StoredResponses, name: str = "resp_1", *, continued: bool = True) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await responses.find_response(name, CLOSED, continued=continued)
    return refused.value


@pytest.mark.parametrize("body", [WHOLE, STREAM])
async def test_a_response_is_found_at_the_worker_that_made_it_by_every_edge(body: bytes) -> None:
    bucket = FakeBucket()
    first, second = (StoredResponses(KeptResponses(bucket)) for _ in range(2))
    first.remember_response(record(body, identity=MINE), "boot-1")
    # The second edge looks before the first one's write has reached the bucket.
    for edge in (first, second):
        kept = (await stored_in(edge)).kept
        assert (kept.model, kept.worker, kept.boot_id) == ("m", "w1", "boot-1")
    assert (await refusal_to(second, "resp_9")).code == "previous_response_not_found"


async def test_the_bucket_has_no_id_and_no_name_of_a_client() -> None:
    bucket = FakeBucket()
    StoredResponses(KeptResponses(bucket)).remember_response(
        record(identity=Identity(tenant="acme", subject="jane")), "boot-1"
    )
    await eventually(lambda: bool(bucket.entries))
    [entry] = bucket.entries.values()
    text = f"{entry.key} {entry.value!r}"
    assert all(word not in text for word in ("resp_1", "acme", "jane"))


async def test_the_first_note_of_an_id_counts_and_an_error_is_no_response() -> None:
    responses = StoredResponses()
    responses.remember_response(record(status=500, worker="w0"), "")
    responses.remember_response(record(worker="w1"), "")
    responses.remember_response(record(worker="w2"), "")
    assert (await stored_in(responses)).kept.worker == "w1"


@pytest.mark.parametrize(("sent", "written"), [(b'{"store": false}', 0), (b'{"a": {"store": false}}', 1), (b"{}", 1)])
async def test_a_response_that_isnt_stored_isnt_written(sent: bytes, written: int) -> None:
    bucket = FakeBucket()
    shared = KeptResponses(bucket)
    responses = StoredResponses(shared)
    responses.remember_response(record(sent=sent), "")
    shared.keep_response("resp_last", KeptResponse(model="m"))
    await eventually(lambda: len(bucket.entries) == written + 1)


async def test_a_response_is_there_for_its_own_client_alone() -> None:
    responses = StoredResponses()
    responses.remember_response(record(identity=MINE), "")
    stored = await stored_in(responses)
    responses.refuse_other_client(stored, MINE)
    for other in (OTHERS, None):
        with pytest.raises(Refusal) as refused:
            responses.refuse_other_client(stored, other)
        unknown = await refusal_to(responses, "resp_2")
        assert (refused.value.status, refused.value.code, refused.value.message) == (400, unknown.code, unknown.message)
    path = await refusal_to(responses, "resp_2", continued=False)
    assert (path.status, path.code) == (404, "response_not_found")


async def test_an_unknown_response_goes_to_any_engine_where_clients_have_no_identities() -> None:
    responses = StoredResponses()
    assert await responses.find_response("resp_1", OPEN, continued=True) is None
    assert responses.unknown == 1


async def test_a_huge_id_is_unknown_without_a_look() -> None:
    bucket = FakeBucket()
    bucket.broken = True
    shared = KeptResponses(bucket)
    assert (await refusal_to(StoredResponses(shared), "r" * (LONGEST_ID + 1))).status == 400
    assert shared.unread == 0


async def test_without_the_bucket_an_edge_knows_its_own_and_counts_the_rest() -> None:
    bucket = FakeBucket()
    bucket.broken = True
    shared = KeptResponses(bucket)
    responses = StoredResponses(shared)
    responses.remember_response(record(identity=MINE), "")
    await eventually(lambda: shared.unwritten == 1)
    assert (await stored_in(responses)).kept.worker == "w1"
    assert (await refusal_to(responses, "resp_2")).status == 503
    assert await responses.find_response("resp_2", OPEN, continued=True) is None
    assert shared.unread == 2


async def test_an_entry_that_isnt_readable_counts_as_unreachable() -> None:
    bucket = FakeBucket()
    shared = KeptResponses(bucket)
    shared.keep_response("resp_1", KeptResponse(model="m"))
    await eventually(lambda: bool(bucket.entries))
    [key] = bucket.entries
    bucket.entries[key] = bucket.entries[key]._replace(value=b"{")
    assert (await refusal_to(StoredResponses(shared))).status == 503


async def test_writes_that_pile_up_are_dropped_and_counted() -> None:
    class Slow(FakeBucket):
        async def put(self, key: str, value: bytes) -> int:
            await asyncio.Event().wait()
            return 0

    shared = KeptResponses(Slow())
    for number in range(MOST_WRITES + 2):
        shared.keep_response(f"resp_{number}", KeptResponse(model="m"))
    assert shared.unwritten == 2
    await eventually(lambda: shared.unwritten == MOST_WRITES + 2)


async def test_a_response_of_an_engine_that_restarted_is_gone() -> None:
    responses = StoredResponses()
    responses.remember_response(record(), "boot-1")
    stored = await stored_in(responses)
    for same in ("boot-1", ""):
        responses.refuse_restarted(stored, same)
    with pytest.raises(Refusal) as refused:
        responses.refuse_restarted(stored, "boot-2")
    error = refused.value
    assert (error.status, error.code, error.param) == (
        400, "previous_response_not_found", "previous_response_id",
    )  # fmt: skip
    assert "send the whole conversation as `input`" in error.message
    assert responses.gone == 1


async def test_a_rejection_for_an_engine_that_is_gone_says_how_to_go_on() -> None:
    responses = StoredResponses()
    responses.remember_response(record(identity=MINE), "")
    known = await stored_in(responses)
    stored = known._replace(kept=replace(known.kept, pool="p"))
    assert responses.explain_rejection(stored, rejection("p", "no_endpoints", MINE)) is None
    gone = responses.explain_rejection(stored, rejection("p", identity=MINE))
    other = responses.explain_rejection(stored, rejection("q", identity=MINE))
    assert gone is not None
    assert other is not None
    assert (gone.code, other.code) == ("previous_response_not_found", "previous_response_of_other_model")
    with pytest.raises(Refusal) as refused:
        responses.explain_rejection(stored, rejection("q", identity=OTHERS))
    assert refused.value.code == "previous_response_not_found"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"previous_response_id": "resp_1"}', "resp_1"),
        (b'{"previous\\u005fresponse_id": "resp_1"}', "resp_1"),
        (b'{"\\u0070revious_response_id": "resp_1"}', "resp_1"),
        (b'{"input": "\\"previous_response_id\\": 1"}', None),
        (b'{"metadata": {"previous_response_id": "resp_1"}}', None),
        (b'{"previous_response_id": null}', None),
        (b'{"previous_response_id": 7}', None),
        (b'{"previous_response_id": ', None),
        (b'["previous_response_id"]', None),
    ],
)
def test_the_response_to_continue_is_read_as_the_engine_reads_it(body: bytes, found: str | None) -> None:
    assert previous_response(body) == found
