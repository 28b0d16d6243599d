"""Reading of answers as they pass: the ends of events, usage, the model's name."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pointsman_apis.streams import HELD, WholeEvents
from pointsman_apis.usage import KEPT, UsageTail
from pointsman_contracts.response import Usage
from pointsman_edge.sending.model_name import ModelName
from pointsman_frontend.adapters.relay import is_stream
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import Received, ScriptedEngine

END = [b"\n\n", b"\r\n\r\n", b"\r\r"]


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], bytes, list[int]]:
    """Whole events, what was begun after them, and where the stream is cut into pieces."""
    end = draw(st.sampled_from(END))
    line = st.binary(min_size=1, max_size=20).map(lambda raw: raw.replace(b"\n", b".").replace(b"\r", b"."))
    events = draw(st.lists(line.map(lambda raw: b"data: " + raw + end), max_size=6))
    begun = draw(st.one_of(st.just(b""), line.map(lambda raw: b"data: " + raw)))
    size = len(b"".join(events)) + len(begun)
    cuts = draw(st.lists(st.integers(min_value=0, max_value=size), max_size=8).map(sorted))
    return events, begun, cuts


@given(streams())
@example(([b"data: a\r\n\r\n"], b"data: b", [8, 9, 10]))
@example(([b"data: a\n\n"], b"", [8]))
def test_events_pass_whole_and_unchanged_however_they_arrive(stream: tuple[list[bytes], bytes, list[int]]) -> None:
    events, begun, cuts = stream
    data = b"".join(events) + begun
    passing = WholeEvents()
    out = b""
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        out += passing.complete_events(data[start:stop])
        assert out == b"" or out.endswith(tuple(END))
    assert out == b"".join(events)
    assert passing.rest() == begun
    assert passing.rest() == b""


@pytest.mark.parametrize(
    ("kind", "stream"),
    [("text/event-stream", True), ("Text/Event-Stream; charset=utf-8", True), ("application/json", False)],
)
def test_a_stream_is_known_by_its_media_type_in_any_case(kind: str, stream: bool) -> None:
    assert is_stream(kind.encode()) is stream


def test_an_event_without_end_is_not_held_for_ever() -> None:
    passing = WholeEvents()
    out = b"".join(passing.complete_events(b"x" * 10_000) for _ in range(HELD // 10_000 + 2))
    assert len(out) > HELD


def usage_of(data: bytes, piece: int) -> Usage | None:
    tail = UsageTail()
    for start in range(0, len(data), piece):
        tail.follow_bytes(data[start : start + piece])
    return tail.read_usage()


COUNTED = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


@given(st.integers(min_value=1, max_value=300), st.integers(min_value=0, max_value=4000))
def test_usage_is_found_at_the_end_however_it_arrives(piece: int, length: int) -> None:
    answer = json.dumps({"choices": [{"text": "x" * length}], "usage": COUNTED, "flag": None}).encode()
    assert usage_of(answer, piece) == Usage(prompt_tokens=5, completion_tokens=7, cached_unknown=True)


@given(st.text(max_size=50))
def test_text_that_speaks_of_usage_is_not_taken_for_it(text: str) -> None:
    written = text + '"usage": {"prompt_tokens": 999}, "usage":{"completion_tokens":999}'
    answer = json.dumps({"usage": COUNTED, "choices": [{"text": written}]}).encode()
    assert usage_of(answer, 64) == Usage(prompt_tokens=5, completion_tokens=7, cached_unknown=True)


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (b"", None),
        (b'{"choices":[]}', None),
        (b'{"usage":null}', None),
        (b'{"usage":', None),
        (b'{"usage":{"prompt_tokens":1', None),
        (b'{"usage":7}', None),
        (b'{"usage":{"prompt_tokens":"many","completion_tokens":true}}', Usage(cached_unknown=True)),
        (
            b'data: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":null}\n\ndata: [DONE]\n\n',
            Usage(prompt_tokens=1, cached_unknown=True),
        ),
        (
            b'data: {"usage" : { "input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 2},'
            b' "output_tokens_details": {"reasoning_tokens": 1}}}',
            Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=2, reasoning_tokens=1),
        ),
        (b'{"usage":{"prompt_tokens":1,"prompt_tokens_details":null}}', Usage(prompt_tokens=1, cached_unknown=True)),
        (b'{"usage":' + b"[" * 5000, None),
    ],
)
def test_usage_of_every_form_is_read_or_left_alone(answer: bytes, usage: Usage | None) -> None:
    assert usage_of(answer, 10_000) == usage


@given(st.lists(st.binary(max_size=KEPT * 2), max_size=8))
def test_the_kept_part_of_an_answer_is_bounded(pieces: list[bytes]) -> None:
    tail = UsageTail()
    for piece in pieces:
        tail.follow_bytes(piece)
    assert tail.end == b"".join(pieces)[-KEPT:]
    assert tail.size == sum(map(len, pieces))


def test_only_the_models_member_is_renamed() -> None:
    name = ModelName('my "model"', "auto")
    document = {"model": 'my "model"', "text": '"model":"my \\"model\\""', "other": 'my "model"'}
    for separators in ((",", ":"), (", ", ": ")):
        put = json.loads(name.rewrite_bytes(json.dumps(document, separators=separators).encode()))
        assert put == document | {"model": "auto"}


NAMES = ["m", "llama-8b", 'my "model"', "model", "a" * 40]


@given(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(["model", "object"]) | st.text(max_size=8), max_size=6),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.lists(st.integers(min_value=0, max_value=400), max_size=8),
)
def test_a_document_that_passes_in_pieces_is_renamed_wherever_it_is_cut(
    served: str, asked: str, words: list[str], separators: tuple[str, str], cuts: list[int]
) -> None:
    members: list[object] = [{"model": served if len(word) % 2 else asked, word: word} for word in words]
    data = json.dumps([*members, {"model": served}], separators=separators).encode()
    name = ModelName(served, asked)
    passing = name.in_pieces()
    out = b""
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        out += passing.rewrite_part(data[start:stop])
        assert len(out) + 60 > len(name.rewrite_bytes(data[:stop])), "more is held than a member"
    assert out + passing.rest() == name.rewrite_bytes(data)


async def test_an_answer_too_large_to_hold_has_the_name_that_was_asked_for_too(start_edge: StartEdge) -> None:
    body = b'{"model":"llama-8b","data":"' + b"x" * 3_000_000 + b'","again":{"model": "llama-8b"}}'

    async def large(request: Received) -> None:
        await request.answer(body)

    async with ScriptedEngine(large) as engine:
        edge = await start_edge(engine.url)
        edge.stages.changes = {"model": "auto"}
        answer = await raw_request(edge.url, post("/v1/embeddings", b'{"model": "llama-8b", "input": "a"}'))
    assert answer.complete
    assert answer.body == body.replace(b"llama-8b", b"auto")
    assert answer.header("content-length") is None


@pytest.mark.requirement("S1-20")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("The model `llama-8b` does not exist.", "The model `prod` does not exist."),
        ("llama-8b's maximum context length is 10; llama-8b.", "prod's maximum context length is 10; prod."),
        ("Not llama-8b-instruct, org/llama-8b, my.llama-8b or llama-8b.1", None),
    ],
)
def test_an_error_speaks_of_the_model_by_the_name_that_was_asked_for(words: str, expected: str | None) -> None:
    document = {"error": {"message": words, "type": "BadRequestError"}, "model": "llama-8b"}
    put = json.loads(ModelName("llama-8b", "prod").put_in_error(json.dumps(document).encode()))
    assert put == {"error": {"message": expected or words, "type": "BadRequestError"}, "model": "prod"}
