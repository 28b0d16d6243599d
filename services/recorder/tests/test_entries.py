"""The entry that is kept of an event, and the record that is charged."""

import orjson
import pytest
from msgspec.structs import replace

from pointsman_contracts.batch import make_batch_id
from pointsman_contracts.cascade import AnswerConfidence
from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import Target
from pointsman_contracts.regret import JudgedChoice, JudgedRequest, RequestsJudged
from pointsman_contracts.response import ResponseCompleted, Seam, UnusedAnswer, Usage
from pointsman_contracts.usage import UsageRecord, UsageSum
from pointsman_recorder.domain.entry import JUDGED, RecordedEvent, entry
from pointsman_recorder.domain.usage_record import cost_of, counted, day_of, records_of

COMPLETED = ResponseCompleted(
    request_id="r-1",
    source="edge-1",
    sequence=7,
    at_ms=1_767_225_599_999,
    pool="llama-8b",
    target=Target(model="llama", pool="llama-8b"),
    status=200,
    outcome="ok",
    usage=Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=4, reasoning_tokens=2),
    identity=Identity(tenant="acme", subject="ci"),
    served="llama-8b-chat",
    cost=0.25,
)
KIND = ResponseCompleted.address.type_id


def record(completed: ResponseCompleted) -> UsageRecord:
    return UsageRecord.decode(records_of(completed)[0].encode())


def test_an_event_is_kept_with_what_the_ledger_is_owed_for_it() -> None:
    kept = entry(KIND, "subject:edge-1:7", COMPLETED.encode(), lambda: 5)
    assert kept is not None
    (owed,) = kept.owed
    assert kept == RecordedEvent(
        "subject:edge-1:7", "r-1", COMPLETED.at_ms, KIND, COMPLETED.encode(), kept.owed, end=COMPLETED
    )
    assert (owed.key, owed.tenant) == ("r-1@edge-1/llama-8b/7/1767225599999", "acme")
    assert UsageRecord.decode(owed.message) == record(COMPLETED)


def test_each_answer_of_a_cascade_is_charged_to_its_model_and_the_request_counts_once() -> None:
    unused = UnusedAnswer(
        target=Target(model="tiny", pool="tiny"), worker="w", served="tiny-chat",
        judged=AnswerConfidence(verdict="unconfident"), usage=Usage(prompt_tokens=10, completion_tokens=3),
        cost_nanos=7,
    )  # fmt: skip
    own, other = records_of(replace(COMPLETED, cost_nanos=100, unused=(unused,)))
    assert own == replace(record(COMPLETED), cost_nanos=100)
    assert (other.key, other.request_id, other.outcome) == (f"{own.key}/0", "r-1", "escalated")
    assert (other.model, other.pool, other.cost_nanos, other.identity) == ("tiny-chat", "tiny", 7, own.identity)
    total = counted([own, other])
    assert (total.requests, total.failed, total.completion_tokens, total.cost_nanos) == (1, 0, 8, 107)


def test_a_stream_that_three_engines_wrote_is_charged_as_one_answer() -> None:
    seam = Seam(worker="a", next_worker="b", form="exact", at_ms=60.0, gap_ms=5.0, kept_tokens=3, computed_again=13)
    continued = replace(COMPLETED, seams=(seam, seam), worker="c")
    assert record(continued) == record(COMPLETED)


def test_an_attempt_of_a_batchs_line_that_is_repeated_has_one_record() -> None:
    """Another replica repeats an attempt whose answer was lost, at another edge and at another time."""
    batch = make_batch_id("batch_", 1_767_225_000_000, "ab12")
    identity = Identity(tenant="acme", batch=batch)
    first = replace(COMPLETED, request_id=f"{batch}-7-1", identity=identity)
    again = replace(first, request_id=f"{batch}-7-1.c0ffee1", source="edge-2", sequence=1, at_ms=COMPLETED.at_ms + 9)
    assert (record(first).key, record(first).at_ms) == (record(again).key, record(again).at_ms)
    assert record(first).at_ms == 1_767_225_000_000
    others = [
        replace(first, request_id=f"{batch}-7-2"),
        replace(first, request_id=f"{batch}-8-1"),
        replace(first, outcome="client_gone"),
        replace(first, identity=Identity(tenant="acme"), sequence=8),
    ]
    assert len({record(each).key for each in (first, *others)}) == len(others) + 1


def test_an_event_of_an_unknown_type_is_kept_by_the_time_that_the_stream_got_it() -> None:
    body = b'{"something": "else"}'
    assert entry("", "PM_EVENTS:3", body, lambda: 5) == RecordedEvent("PM_EVENTS:3", None, 5, "", body, ())


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b'{"request_id": 5}', b'{"request_id": "x"', b'{"at_ms": 9223372036854775808}']
)
def test_an_unreadable_message_is_no_event(body: bytes) -> None:
    assert entry("", "p", body, lambda: 0) is None
    assert entry(KIND, "p", body, lambda: 0) is None


@pytest.mark.parametrize(
    "rest", [b'"\xff"', b'"\\ud800"', b'"\\uDFFF"', b"[" * 5000], ids=["bytes", "half", "other half", "deep"]
)
@pytest.mark.parametrize("kind", ["", KIND])
def test_an_unreadable_message_is_no_event_wherever_the_fault_is(kind: str, rest: bytes) -> None:
    assert entry(kind, "p", COMPLETED.encode()[:-1] + b',"other":' + rest + b"}", lambda: 0) is None


def _judged(at_ms: int, regret_us: int) -> bytes:
    choice = JudgedChoice(profile="p", worker="w", cost_us=9, regret_us=regret_us, reason="picker")
    request = JudgedRequest(
        request_id="r-1", edge="e", at_ms=at_ms, prompt_tokens=1, output_tokens=1, choices=(choice,)
    )
    return RequestsJudged(
        source="j-1",
        sequence=1,
        at_ms=5,
        judge="j",
        pool="p",
        requests=(request,),
        rates=(),
        others=0.0,
        batch_tokens=0.0,
        first_token_weight=0.0,
    ).encode()


def test_regret_of_a_time_that_no_calendar_has_counts_for_the_nearest_hour() -> None:
    kept = entry(JUDGED, "j:1", _judged(10**20, 7), lambda: 0)
    assert kept is not None
    assert [(row.hour, row.regret_us) for row in kept.regret] == [("9999-12-31T23", 7)]


def test_regret_that_no_table_holds_is_no_event() -> None:
    assert entry(JUDGED, "j:1", _judged(5, 2**63), lambda: 0) is None


def test_a_number_in_a_string_is_read_as_ever() -> None:
    kept = entry("", "p", b'{"request_id": "r-1", "at_ms": "7"}', lambda: 0)
    assert kept is not None
    assert (kept.request_id, kept.at_ms) == ("r-1", 7)
    ended = entry(KIND, "p", COMPLETED.encode().replace(b'"status":200', b'"status":"200"'), lambda: 0)
    proper = entry(KIND, "p", COMPLETED.encode(), lambda: 0)
    assert ended is not None
    assert proper is not None
    assert len(ended.owed) == 1
    assert ended.owed == proper.owed


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {"source": None},
            {"sequence": "7th"},
            {"pool": 1},
            {"request_id": None},
            {"at_ms": "soon"},
            {"status": None},
        ),
        *({"target": "llama"}, {"usage": {"prompt_tokens": "many"}}, {"identity": "acme"}, {"cost": "free"}),
        # More than a table holds.
        *({"at_ms": 2**63}, {"usage": {"cached_tokens": 2**63}}, {"cost_nanos": -(2**63)}, {"cost": 1e10}),
    ],
    ids=str,
)
def test_an_end_with_a_fact_of_the_wrong_kind_or_size_is_no_event(wrong: dict[str, object]) -> None:
    body = {**orjson.loads(COMPLETED.encode()), **wrong}
    assert entry(KIND, "p", orjson.dumps(body), lambda: 0) is None


def test_a_record_has_identity_model_tokens_and_cost() -> None:
    found = record(COMPLETED)
    assert (found.identity, found.model, found.pool, cost_of(found)) == (
        Identity(tenant="acme", subject="ci"),
        "llama-8b-chat",
        "llama-8b",
        250_000_000,
    )
    assert counted([found]) == UsageSum(
        requests=1, prompt_tokens=10, cached_tokens=4, completion_tokens=5, reasoning_tokens=2, cost_nanos=250_000_000
    )


def test_a_request_that_used_nothing_has_its_record_too() -> None:
    rejected = replace(COMPLETED, usage=None, cost=None, served=None, target=None, status=429, outcome="rejected")
    assert counted([record(rejected)]) == UsageSum(requests=1, failed=1)


def test_tokens_without_a_price_are_reported() -> None:
    estimated = replace(COMPLETED, usage=Usage(prompt_tokens=3, estimated=True), cost=None)
    assert counted([record(estimated)]) == UsageSum(requests=1, prompt_tokens=3, estimated=1, unpriced=1)


@pytest.mark.parametrize("other", [{"sequence": 8}, {"source": "edge-2"}], ids=["later", "at another edge"])
def test_a_client_that_uses_its_request_id_again_is_charged_again(other: dict[str, object]) -> None:
    again = replace(COMPLETED, **other)
    assert record(again).key != record(COMPLETED).key


@pytest.mark.parametrize(
    ("at_ms", "day"),
    [
        (1_767_225_599_999, "2025-12-31"),
        (1_767_225_600_000, "2026-01-01"),
        (-5, "1970-01-01"),
        (10**20, "9999-12-31"),
    ],
)
def test_days_end_at_midnight_utc(at_ms: int, day: str) -> None:
    assert day_of(at_ms) == day
