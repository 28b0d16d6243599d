"""The messages of a request as msgspec reads them, compared with their own readers."""

import json
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, JsonValue, ValidationError

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import (
    AnswerUse,
    BlockChain,
    BodyEdit,
    HeaderEdit,
    Journey,
    PreprocessRequest,
    RequestFacts,
    Stage,
    StageReport,
    Target,
)
from pointsman_contracts.message import Address, Message
from pointsman_contracts.message_reader import message_reader
from pointsman_contracts.reply import REPLY, Answer, ChosenEndpoint, Decision, Parked, Rejection, read_reply
from pointsman_contracts.response import Usage
from pointsman_contracts.response_stage import AnswerText, ResponseReview

_TARGET = Target(model="m", pool="p", lora="l", base="b")
_STAGE = Stage(service="guard", policy="p", mode="shadow", timeout_ms=9, answer=AnswerUse(mode="window"), memo="x")
_EDIT = BodyEdit(field="f", value={"a": [1, 2.5, None, {"b": "c"}]})
_REPORT = StageReport(stage="s", instance="i", took_ms=1.25, note="n")
_HEADER = HeaderEdit(name="x", value="y", tells="model")
_FACTS = RequestFacts(
    api="chat.completions", blocks=bytes(range(248, 256)), fingerprint=b"\xff\xfe",
    other_chains=(BlockChain(block_tokens=16, blocks=b"12345678"),), features=("tools",), headers={"a": "b"},
    fields={"n": 1, "t": 0.5}, attributes={"identity": {"scopes": ["a"], "limits": {"x": 1}}}, session="s",
    slo_ttft_ms=20.0, subset=("h:1",), workers=(),
)  # fmt: skip
JOURNEY = Journey(
    request_id="r", edge="e", received_ms=1, deadline_ms=2, revision=3, request=_FACTS, model="m", rewritten="w",
    target=_TARGET, alternatives=(_TARGET, _TARGET), profile="p", itinerary=(_STAGE,), response=(_STAGE, _STAGE),
    headers=(_HEADER,), body=(_EDIT,), answer_headers=(_HEADER,), level="degraded", reasons=("r",), trail=(_REPORT,),
)  # fmt: skip
REQUEST = PreprocessRequest(
    request_id="r", edge="e", received_ms=1, deadline_ms=2, revision=3, method="POST", path="/v1/x", model="m",
    headers={"a": "b"}, client="c", body_bytes=7,
)  # fmt: skip
DECISION = Decision(
    request_id="r", revision=3, profile="p", model="m", target=_TARGET, scheduler="s", alternatives=(_TARGET,),
    endpoints=(ChosenEndpoint(worker="w", url="u", target=_TARGET),), headers=(_HEADER,), body=(_EDIT,),
    identity=Identity(tenant="t"), queued_ms=1.5, answers=2,
)  # fmt: skip
REVIEW = ResponseReview(
    request_id="r", edge="e", stage="guard", policy="p", revision=3, deadline_ms=2, mode="after", status=200,
    target=_TARGET, headers={"a": "b"}, texts=(AnswerText(part="0", kind="text", text="t"),), body=b"\xff\xfe",
    usage=Usage(prompt_tokens=1), stages=(_REPORT,), memo="m",
)  # fmt: skip
MESSAGES = (JOURNEY, REQUEST, DECISION, REVIEW)

Read = Callable[[bytes], Message]
READERS: dict[type[Message], Read] = {type(each): message_reader(type(each), type(each).decode) for each in MESSAGES}


class _Refused(Exception):
    pass


def _refused(document: bytes) -> Message:
    raise _Refused


def _places(value: JsonValue) -> list[tuple[dict[str, JsonValue], str]]:
    """Each member of each object in a document."""
    if isinstance(value, dict):
        own = [(value, name) for name in value]
        return own + [place for inner in value.values() for place in _places(inner)]
    return [place for inner in value for place in _places(inner)] if isinstance(value, list) else []


def _outcome(read: Read, document: bytes) -> tuple[str, bytes] | list[object]:
    """The values that were read, as text since NaN isn't equal to itself, and the bytes that they are forwarded as; or
    the faults."""
    try:
        message = read(document)
    except ValidationError as error:
        return [(fault["type"], fault["loc"]) for fault in error.errors()]
    return repr(message), message.encode()


_VALUES = [
    "null", "true", "false", "0", "1", "-1", "0.0", "1.0", "1.5", "1e3", "1e400", "NaN", "18446744073709551616", '""',
    '"1"', '"true"', '"a"', '"AB=="', '"AA=="', '"+/A="', '"-_A="', '"é"', '"\\u00e9"', '"\\ud800"', "[]", "{}", "[1]",
    '["a"]', "[null]", '{"a":"b"}', '{"a":1}', '{"a":[[[[[1]]]]]}', "[[[[[[[]]]]]]]",
]  # fmt: skip


@given(message=st.sampled_from(MESSAGES), data=st.data())
def test_a_document_with_any_value_in_any_place_is_read_or_refused_as_by_its_own_reader(
    message: Message, data: st.DataObject
) -> None:
    document = json.loads(message.encode())
    holder, name = data.draw(st.sampled_from(_places(document)))
    change = data.draw(st.sampled_from(["replace", "remove", "add", "repeat"]))
    if change in ("replace", "remove"):
        del holder[name]
    if change != "remove":
        holder["@"] = None
    written = {"add": "unheard_of", "replace": name, "repeat": name}.get(change, "")
    text = json.dumps(document).replace('"@": null', f'"{written}": {data.draw(st.sampled_from(_VALUES))}').encode()
    kind = type(message)
    assert _outcome(READERS[kind], text) == _outcome(kind.decode, text)


@given(message=st.sampled_from(MESSAGES), at=st.integers(0, 2000), cut=st.integers(0, 3), put=st.binary(max_size=3))
@example(message=REQUEST, at=15, cut=1, put=b"\xff")
@example(message=REQUEST, at=15, cut=1, put=b"\\ud800\\u0041")
@example(message=REQUEST, at=0, cut=0, put=b"\xef\xbb\xbf")
def test_broken_bytes_are_refused_as_by_its_own_reader(message: Message, at: int, cut: int, put: bytes) -> None:
    whole, kind = message.encode(), type(message)
    text = whole[: at % len(whole)] + put + whole[at % len(whole) + cut :]
    assert _outcome(READERS[kind], text) == _outcome(kind.decode, text)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_is_read_as_it_was_published_and_written_as_it_came(message: Message) -> None:
    read = message_reader(type(message), _refused)(message.encode())
    assert read == message
    assert read.encode() == message.encode()


def test_absent_fields_have_the_defaults_of_the_message() -> None:
    text = (
        b'{"request_id":"r","edge":"e","received_ms":1,"deadline_ms":2,"revision":3,"model":"m","request":{"api":"a"}}'
    )
    read = message_reader(Journey, _refused)
    one, other = read(text), read(text)
    assert one == other == Journey.decode(text)
    assert isinstance(one, Journey)
    assert isinstance(other, Journey)
    assert one.request.headers is not other.request.headers


@pytest.mark.parametrize(
    ("there", "instead"),
    [(b'"n":1', b'"n":' + b"[" * 300 + b"]" * 300), (b',"blocks":"MTIzNDU2Nzg="', b"")],
    ids=["a value nests too deep", "blocks are missing"],
)
def test_a_fault_deep_in_the_document_is_refused(there: bytes, instead: bytes) -> None:
    assert there in JOURNEY.encode()
    with pytest.raises(ValidationError):
        READERS[Journey](JOURNEY.encode().replace(there, instead))


@pytest.mark.parametrize(
    "reply",
    [
        DECISION,
        Rejection(request_id="r", stage="s", status=429, type="t", message="m"),
        Parked(request_id="r", stage="s", instance="i", reason="r"),
        Answer(request_id="r", stage="s", body=b'{"kind":"decision"}\n'),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_reply_is_read_as_what_it_is(reply: Decision | Rejection | Parked | Answer) -> None:
    assert read_reply(reply.encode()) == reply


def test_of_two_kinds_in_a_reply_the_last_one_counts() -> None:
    text = DECISION.encode()[:-1] + b',"kind":"parked","stage":"s","instance":"i","reason":"r"}'
    assert read_reply(text) == REPLY.validate_json(text)
    assert isinstance(read_reply(text), Parked)


def test_a_field_that_msgspec_would_read_otherwise_is_an_error() -> None:
    class Bounded(Message):
        address = Address("rpc", "test", "bounded")
        name: str = Field(max_length=3)

    class Several(Message):
        address = Address("rpc", "test", "several")
        bodies: tuple[bytes, ...]

    with pytest.raises(TypeError, match="unknown kind"):
        message_reader(Bounded, Bounded.decode)
    with pytest.raises(TypeError, match="aren't read"):
        message_reader(Several, Several.decode)
