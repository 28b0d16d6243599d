"""Messages on the wire: as earlier versions wrote them, as the released schemas describe them, and as foreign stages
write them.

`corpus.jsonl` has documents of every message as the version before messages became structs wrote them: with the fewest
fields, with all fields, and with some. It isn't generated again; a new message needs no entry.
"""

import json
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec.structs import asdict, replace

from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.journey import HeaderEdit, Journey, RequestFacts
from pointsman_contracts.limits import CounterState
from pointsman_contracts.message import Blob, JsonValue, MalformedMessage, Message, read_fields
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection, Reply, read_reply
from pointsman_contracts.response import ResponseCompleted

FOLDER = Path(__file__).resolve().parent.parent
KINDS = {message.address.type_id: message for message in MESSAGES}
CORPUS = [
    (cast("str", line["type"]), cast("str", line["document"]))
    for line in map(json.loads, (FOLDER / "tests/corpus.jsonl").read_text(encoding="utf-8").splitlines())
]
BRIEF = (
    "limits.ask.v1",
    "limits.verdicts.v1",
    "limits.kept.v1",
    "scheduler.reservation.v1",
    "scheduler.state-answer.v1",
)
"""Messages with parts whose defaults are left out: they were written by two writers, of which one left them out."""
JOURNEY = next(document.encode() for kind, document in CORPUS if kind == "request.journey.v1")


def _document(text: bytes | str) -> JsonValue:
    document = text.encode() if isinstance(text, str) else text
    return cast("JsonValue", json.loads(document.partition(b"\n")[0]))


def _known(before: JsonValue, now: JsonValue) -> JsonValue:
    """Today's document without fields that the other one doesn't have: fields may have been added since."""
    if isinstance(before, dict) and isinstance(now, dict):
        return {name: _known(before[name], value) for name, value in now.items() if name in before}
    if isinstance(before, list) and isinstance(now, list):
        return [_known(*pair) for pair in zip(before, now, strict=True)]
    return now


@pytest.mark.parametrize("type_id", KINDS)
def test_documents_of_the_version_before_mean_the_same_when_they_are_written_again(type_id: str) -> None:
    kind, documents = KINDS[type_id], [document for name, document in CORPUS if name == type_id]
    for document in documents:
        read = kind.decode(document)
        assert kind.decode(read.encode()) == read
        assert type_id in BRIEF or _known(_document(document), _document(read.encode())) == _document(document)
        assert not isinstance(read, Decision | Rejection | Parked | Answer) or read_reply(document.encode()) == read


@pytest.mark.parametrize("path", sorted((FOLDER / "released").glob("*.json")), ids=lambda path: cast("Path", path).stem)
def test_todays_documents_are_valid_by_the_released_schema(path: Path) -> None:
    validator = Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))
    written = [KINDS[name].decode(document).encode() for name, document in CORPUS if name == path.stem]
    assert written
    for document in written:
        validator.validate(_document(document))  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.parametrize("type_id", sorted(KINDS.keys() - set(BRIEF) - {"request.answer.v1"}))
def test_a_default_is_written_unless_it_is_none(type_id: str) -> None:
    document = next(document for name, document in CORPUS if name == type_id)
    message = KINDS[type_id].decode(document)
    written = cast("dict[str, JsonValue]", _document(message.encode()))
    for name, value in asdict(message).items():
        assert (name in written) == (value is not None), name


def test_fields_of_a_newer_sender_are_ignored() -> None:
    document = cast("dict[str, dict[str, JsonValue]]", _document(JOURNEY))
    known = Journey.decode(json.dumps(document))
    document["added_later"] = {"x": 1}
    document["request"]["added_later"] = True
    assert Journey.decode(json.dumps(document)) == known


@given(st.text(), st.none() | st.text(), st.text())
def test_a_message_is_read_as_it_was_built(name: str, value: str | None, request_id: str) -> None:
    journey = Journey.decode(JOURNEY).changed(headers=(HeaderEdit(name=name, value=value),))
    journey = replace(journey, request_id=request_id)
    assert Journey.decode(journey.encode()) == journey


@given(st.binary(max_size=40))
def test_bytes_travel_as_base64_in_the_alphabet_of_urls(blocks: bytes) -> None:
    facts = read_fields(RequestFacts, {"api": "chat", "blocks": blocks})
    journey = Journey.decode(JOURNEY).changed(request=facts)
    text = cast("dict[str, dict[str, str]]", _document(journey.encode()))["request"]["blocks"]
    assert not set(text) & set("+/")
    assert Journey.decode(journey.encode()).request.blocks == blocks
    for variant in (text.replace("-", "+").replace("_", "/"), text.rstrip("=")):
        assert read_fields(RequestFacts, {"api": "chat", "blocks": variant}) == facts


@pytest.mark.parametrize("blocks", ["A", "AAAAA", "A A=", "AA*A=", "AB==", "\ud800", "Ā"])
def test_a_text_that_is_no_base64_makes_the_message_malformed(blocks: str) -> None:
    with pytest.raises(MalformedMessage, match="at blocks"):
        read_fields(RequestFacts, {"api": "chat", "blocks": blocks})


def test_a_number_in_a_string_is_read_and_a_whole_number_is_a_float_where_a_float_is_meant() -> None:
    facts = {"api": "chat", "prompt_tokens": "5", "stream": "true", "slo_itl_ms": "2.5", "priority": 3.0}
    read = read_fields(RequestFacts, facts)
    assert (read.prompt_tokens, read.stream, read.slo_itl_ms, read.priority) == (5, True, 2.5, 3)
    assert isinstance(read_fields(CounterState, {"window": "w", "limit": "l", "slots": [5]}).slots[0], float)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (b"", "Journey: Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `request_id`"),
        (b"\xff", "malformed"),
        (JOURNEY[:-1], "truncated"),
        (JOURNEY.replace(b'"headers":', b'"headers":7,"x":', 1), "got `int` at .*headers"),
        (b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "Journey: "),
    ],
    ids=["nothing", "a list", "no field", "no UTF-8", "cut off", "a number for an object", "too deep"],
)
def test_a_malformed_document_is_refused_with_the_place_of_its_fault(document: bytes, problem: str) -> None:
    with pytest.raises(MalformedMessage, match=problem):
        Journey.decode(document)


def test_the_text_of_an_error_has_no_value_of_the_document() -> None:
    with pytest.raises(MalformedMessage) as caught:
        read_reply(b'{"kind":"secret"}')
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("answers", [0, -1])
def test_a_value_out_of_its_bounds_is_refused(answers: int) -> None:
    with pytest.raises(MalformedMessage, match=">= 1"):
        read_fields(RequestFacts, {"api": "chat", "answers": answers})


def test_two_messages_share_no_default_that_can_change() -> None:
    assert RequestFacts(api="chat").headers is not RequestFacts(api="chat").headers


def test_a_body_follows_the_document_of_an_answer() -> None:
    answer = Answer(request_id="r", stage="s", body=b'{"kind":"decision"}\n')
    document, body = answer.encode().split(b"\n", 1)
    assert "body" not in json.loads(document)
    assert body == answer.body
    assert Answer.decode(answer.encode()) == answer == read_reply(answer.encode())


def test_a_reply_on_several_lines_is_read() -> None:
    parked = Parked(request_id="r", stage="s", instance="i", reason="r")
    assert read_reply(json.dumps(_document(parked.encode()), indent=1).encode()) == parked


@pytest.mark.parametrize("kind", [Decision, Rejection, Answer, Parked])
def test_every_reply_says_what_it_is(kind: type[Reply]) -> None:
    document = next(text for name, text in CORPUS if name == kind.address.type_id)
    assert cast("dict[str, str]", _document(kind.decode(document).encode()))["kind"] == kind.address.name


def test_a_part_is_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        # The type checkers find it, too.
        HeaderEdit(name="a").name = "b"  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: cast("type[Message]", message).__name__)
def test_a_message_has_the_options_of_all_messages(message: type[Message]) -> None:
    config = message.__struct_config__
    assert (config.frozen, config.omit_defaults, config.forbid_unknown_fields, config.gc) == (True, True, False, False)


class _Integer:
    """As an integer of numpy."""

    def __index__(self) -> int:
        return 7


class _Float(float):
    """As a float of numpy."""


def test_numbers_of_other_classes_are_written_as_those_of_python() -> None:
    beat = ServicePresence(service="s", instance="i", sequence=_Integer(), at_ms=0, version="0.1.0")  # pyright: ignore[reportArgumentType]
    assert ServicePresence.decode(beat.encode()).sequence == 7
    ended = ResponseCompleted(
        request_id="r", source="e", sequence=1, at_ms=0, pool="p", status=200, outcome="ok", decided_ms=_Float(2.5)
    )
    assert ResponseCompleted.decode(ended.encode()).decided_ms == 2.5


def test_a_value_that_no_document_has_is_refused() -> None:
    facts = RequestFacts(api="chat", attributes={"a": object()})  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="can't have a object"):
        Journey.decode(JOURNEY).changed(request=facts).encode()


def test_blobs_are_bytes() -> None:
    assert Blob(b"ab") == b"ab"
    assert hash(Blob(b"ab")) == hash(b"ab")
