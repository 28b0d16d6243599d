"""The usage of a request is the reported one, or an estimate by its bytes, which is marked."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_apis import named
from pointsman_apis.streams import WholeEvents
from pointsman_apis.usage import KEPT, UsageTail
from pointsman_contracts.journey import Target
from pointsman_contracts.money import nanos
from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_contracts.response import Usage
from pointsman_core.config import load
from pointsman_core.prices import Prices
from pointsman_edge.deciding.policy import compile_policy
from pointsman_edge.sending.unasked_usage import WithoutUsage
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_edge.telling.settled_usage import BROKEN_OFF, settled

PROMPT = 40
REPORT = {"prompt_tokens": 31, "completion_tokens": 7}


def sse(document: object) -> bytes:
    kind = f"event: {document['type']}\n" if isinstance(document, dict) and "type" in document else ""
    return f"{kind}data: {json.dumps(document)}\n\n".encode()


def said(api: str, text: str) -> bytes:
    """An event that brings a piece of text, as engines write it for this API."""
    match api:
        case "chat.completions":
            return sse({"choices": [{"index": 0, "delta": {"content": text}}], "usage": None})
        case "completions":
            return sse({"choices": [{"index": 0, "text": text}]})
        case "responses":
            delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text}
            return sse(delta)
        case _:
            delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
            return sse(delta)


BEGINNINGS = {
    "chat.completions": sse({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
    "completions": b"",
    "responses": sse({"type": "response.created", "response": {"output": [], "usage": None}}),
    "messages": sse({"type": "message_start", "message": {"usage": {"input_tokens": 31, "output_tokens": 1}}}),
}
STREAMED = sorted(BEGINNINGS)


def read(api: str, *pieces: bytes) -> UsageTail:
    tail = named(api).usage()
    for piece in pieces:
        tail.follow_bytes(piece)
    return tail


def settle(api: str, outcome: str, tail: UsageTail | None, reported: Usage | None = None) -> Usage | None:
    reported = (tail.read_usage() if tail is not None else None) or reported
    return settled(named(api), outcome, 200, tail, reported, PROMPT, sent=True)


@pytest.mark.requirement("S3-17")
@pytest.mark.parametrize("outcome", sorted(BROKEN_OFF))
@pytest.mark.parametrize("api", STREAMED)
@given(data=st.data(), events=st.integers(min_value=3, max_value=300))
@settings(max_examples=10)
def test_a_stream_that_breaks_off_used_what_passed_wherever_it_was_cut_into_pieces(
    api: str, outcome: str, data: st.DataObject, events: int
) -> None:
    stream = BEGINNINGS[api] + said(api, " word") * events
    cuts = sorted(data.draw(st.lists(st.integers(min_value=0, max_value=len(stream)), max_size=6)))
    pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    usage = settle(api, outcome, read(api, *pieces))
    assert usage is not None
    assert usage.estimated
    assert usage.prompt_tokens == (31 if api == "messages" else PROMPT)
    # Text that doesn't fit into the kept end is counted by events, including the few without text.
    assert usage.completion_tokens == pytest.approx(events, abs=max(2, events * 0.03))


def test_events_that_gather_several_tokens_are_counted_by_their_text() -> None:
    usage = settle("chat.completions", "client_gone", read("chat.completions", said("chat.completions", "x" * 40) * 20))
    assert usage == Usage(prompt_tokens=PROMPT, completion_tokens=200, estimated=True, cached_unknown=True)


def test_of_events_that_are_too_long_to_be_kept_those_that_are_kept_stand_for_all() -> None:
    usage = settle(
        "chat.completions", "client_gone", read("chat.completions", said("chat.completions", "x" * 5000) * 10)
    )
    assert usage == Usage(prompt_tokens=PROMPT, completion_tokens=12_500, estimated=True, cached_unknown=True)


@pytest.mark.parametrize(
    ("api", "end"),
    [
        ("responses", {"type": "response.output_text.done", "output_index": 0, "text": " word" * 20}),
        (
            "responses",
            {
                "type": "response.completed",
                "response": {
                    "output": [{"type": "message", "content": [{"type": "output_text", "text": " word" * 20}]}]
                },
            },
        ),
        ("chat.completions", {"error": {"message": "the engine stopped " * 20}}),
        ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "too busy " * 20}}),
    ],
)
def test_repeated_texts_and_errors_were_not_generated(api: str, end: object) -> None:
    usage = settle(api, "cut_off", read(api, said(api, " word") * 20 + sse(end)))
    assert usage == Usage(prompt_tokens=PROMPT, completion_tokens=20, estimated=True, cached_unknown=True)


def test_quotations_in_an_answer_were_not_generated() -> None:
    quote = {"type": "citations_delta", "citation": {"type": "char_location", "cited_text": "y" * 400}}
    events = said("messages", " word") + sse({"type": "content_block_delta", "index": 0, "delta": quote})
    usage = settle("messages", "client_gone", read("messages", events * 20))
    assert usage == Usage(prompt_tokens=PROMPT, completion_tokens=20, estimated=True, cached_unknown=True)


def test_the_arguments_of_calls_and_thoughts_count_too() -> None:
    call = {"index": 0, "function": {"arguments": '{"a"'}}
    events = [{"reasoning_content": "so"}, {"tool_calls": [call]}]
    stream = b"".join(sse({"choices": [{"index": 0, "delta": delta}]}) for delta in events)
    usage = settle("chat.completions", "client_gone", read("chat.completions", stream))
    assert usage == Usage(prompt_tokens=PROMPT, completion_tokens=2, estimated=True, cached_unknown=True)


def test_thoughts_that_an_engine_says_under_two_names_were_generated_once() -> None:
    delta = {"reasoning": " other", "reasoning_content": " other"}
    stream = sse({"choices": [{"index": 0, "delta": delta}]}) * 20
    usage = settle("chat.completions", "client_gone", read("chat.completions", stream))
    assert usage == Usage(prompt_tokens=PROMPT, completion_tokens=20, estimated=True, cached_unknown=True)


@pytest.mark.parametrize("api", STREAMED)
def test_usage_reported_before_the_client_left_counts(api: str) -> None:
    ends: dict[str, dict[str, object]] = {
        "chat.completions": {"choices": [], "usage": REPORT},
        "completions": {"choices": [], "usage": REPORT},
        "responses": {
            "type": "response.completed",
            "response": {"usage": {"input_tokens": 31, "output_tokens": 7}},
        },
        "messages": {"type": "message_delta", "usage": {"output_tokens": 7}},
    }
    tail = read(api, BEGINNINGS[api], said(api, " word") * 9, sse(ends[api]))
    assert settle(api, "client_gone", tail) == Usage(prompt_tokens=31, completion_tokens=7, cached_unknown=True)


def test_an_engine_that_reports_nothing_at_all_is_counted_and_marked() -> None:
    whole = json.dumps({"choices": [{"message": {"content": "x" * 80}}]}).encode()
    expected = Usage(prompt_tokens=PROMPT, completion_tokens=20, estimated=True, cached_unknown=True)
    assert settle("chat.completions", "ok", read("chat.completions", whole)) == expected
    # Of a long one only the end is kept: it is its text for the most part.
    long = json.dumps({"choices": [{"message": {"content": "x" * KEPT * 4}}]}).encode()
    usage = settle("chat.completions", "ok", read("chat.completions", long))
    assert usage is not None
    assert usage.completion_tokens == pytest.approx(KEPT, rel=0.01)
    vectors = settle("embeddings", "ok", read("embeddings", b'{"data":[{"embedding":[0.5]}]}'))
    assert vectors == Usage(prompt_tokens=PROMPT, estimated=True, cached_unknown=True)
    many = json.dumps({"data": [{"embedding": [0.5] * KEPT}]}).encode()
    assert settle("embeddings", "ok", read("embeddings", many)) == vectors


def test_an_explicit_zero_is_a_report_where_nothing_contradicts_it() -> None:
    document = b'{"choices":[{"message":{"content":""}}],"usage":{"prompt_tokens":0,"completion_tokens":0}}'
    tail = read("chat.completions", document)
    assert settled(named("chat.completions"), "ok", 200, tail, tail.read_usage(), 0, sent=True) == Usage(
        cached_unknown=True
    )


@pytest.mark.parametrize("count", ['"7"', "null", "-7", "NaN", "0", "{}"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_count_that_cant_be_read_is_estimated_and_marked_and_never_zero(count: str, stream: bool) -> None:
    text = json.dumps({"choices": [{"message": {"content": "x" * 80}}]})
    for usage, expected in (
        (
            f'{{"prompt_tokens":{count},"completion_tokens":7}}',
            Usage(prompt_tokens=PROMPT, completion_tokens=7, cached_unknown=True),
        ),
        (
            f'{{"prompt_tokens":31,"completion_tokens":{count}}}',
            Usage(prompt_tokens=31, completion_tokens=20, cached_unknown=True),
        ),
        (
            f'{{"prompt_tokens":{count},"completion_tokens":{count}}}',
            Usage(prompt_tokens=40, completion_tokens=20, cached_unknown=True),
        ),
    ):
        answer = f'{text[:-1]},"usage":{usage}}}'.encode()
        if stream:
            report = f'data: {{"choices":[],"usage":{usage}}}\n\ndata: [DONE]\n\n'.encode()
            answer = said("chat.completions", "x" * 40) * 2 + report
        found = settle("chat.completions", "ok", read("chat.completions", answer))
        assert found == replace(expected, estimated=True)


@pytest.mark.parametrize(
    ("outcome", "usage"),
    [
        # The engine was at work for a client that left; a failure that isn't the client's costs it nothing.
        ("client_gone", Usage(prompt_tokens=PROMPT, estimated=True, cached_unknown=True)),
        ("engine_error", None),
        ("timeout", None),
        ("cut_off", None),
        ("rejected", None),
    ],
)
def test_without_a_byte_of_an_answer_only_a_client_that_left_has_used_something(
    outcome: str, usage: Usage | None
) -> None:
    assert settle("chat.completions", outcome, None) == usage
    assert settle("chat.completions", outcome, named("chat.completions").usage()) == usage
    assert settled(named("chat.completions"), outcome, 499, None, None, PROMPT, sent=False) is None


def test_an_error_of_the_engine_used_nothing() -> None:
    tail = read("chat.completions", b'{"error":{"message":"too long"}}')
    assert settled(named("chat.completions"), "ok", 400, tail, None, PROMPT, sent=True) is None
    assert settled(named("chat.completions"), "engine_error", 500, tail, None, PROMPT, sent=True) is None
    # It had begun with 200.
    assert settled(named("chat.completions"), "engine_error", 200, tail, None, PROMPT, sent=True) is None


def test_usage_that_a_provider_reported_beside_its_answer_counts_unless_it_was_the_beginning() -> None:
    told = Usage(prompt_tokens=31, completion_tokens=7, cached_tokens=3)
    tail = read("chat.completions", said("chat.completions", " word") * 9)
    assert settle("chat.completions", "ok", tail, told) == told
    assert settle("chat.completions", "client_gone", tail, told) == told
    begun = replace(told, completion_tokens=1)
    expected = replace(told, completion_tokens=9, estimated=True)
    assert settle("chat.completions", "client_gone", tail, begun) == expected


@given(data=st.data(), texts=st.lists(st.text(max_size=12), max_size=6), end=st.sampled_from(["\n\n", "\r\n\r\n"]))
@settings(max_examples=40)
def test_unasked_usage_never_shows_wherever_the_stream_was_cut_into_pieces(
    data: st.DataObject, texts: list[str], end: str
) -> None:
    others = [f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}{end}".encode() for text in texts]
    usage = f"data: {json.dumps({'choices': [], 'usage': REPORT})}{end}".encode()
    done = f"data: [DONE]{end}".encode()
    stream = b"".join((*others, usage, done))
    cuts = sorted(data.draw(st.lists(st.integers(min_value=0, max_value=len(stream)), max_size=8)))
    events, without = WholeEvents(), WithoutUsage(None)
    out = b"".join(
        without.rewrite_bytes(events.complete_events(stream[start:stop]))
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    )
    assert out + without.rewrite_bytes(events.rest()) == b"".join((*others, done))


CONFIG = load(
    {
        "pools": {"llama-8b": {"models": ["llama", "sql"], "loras": ["sql"]}},
        "providers": {"far": {"kind": "openai", "base_url": "http://127.0.0.1:9"}},
        "models": {
            "llama": {"pool": "llama-8b", "cost": {"input": 1, "output": 2, "cached": 0.25}},
            "large": {"provider": "far", "served_as": "gpt", "cost": {"input": 2, "output": 8}},
            "also-large": {"provider": "far", "served_as": "gpt", "cost": {"input": 3, "output": 8}},
            "free": {"pool": "llama-8b", "served_as": "sql"},
        },
    }
)
USAGE = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=500_000)


@pytest.mark.parametrize(
    ("target", "asked", "name", "cost"),
    [
        (Target(model="llama", pool="llama-8b"), "llama", "llama", 0.6 + 0.1 + 1.0),
        # Without a price of their own, cached tokens cost what the others do.
        (Target(model="gpt", provider="far"), "auto", "large", 2.0 + 4.0),
        (Target(model="gpt", provider="far"), "also-large", "also-large", 3.0 + 4.0),
        (Target(model="sql", pool="llama-8b", lora="sql"), "auto", "free", None),
        (Target(model="unknown", pool="other"), "auto", "unknown", None),
    ],
)
def test_a_request_costs_what_the_model_that_served_it_costs(
    target: Target, asked: str, name: str, cost: float | None
) -> None:
    record = RequestRecord("r", named("chat.completions"), compile_policy(CONFIG, 1), 0.0)
    decision = Decision(
        request_id="r", revision=1, profile="p", model=asked, target=target, endpoints=(), scheduler="", prompt_tokens=1
    )
    record.record_decision(replace(decision, endpoints=(ChosenEndpoint(worker="w", url=""),)), 1.0)
    record.usage = USAGE
    record.end("ok", 200)
    record.settle()
    completed = record.make_completion("edge", 1, 0, 2.0)
    assert (completed.served, completed.usage) == (name, USAGE)
    assert completed.cost_nanos == (None if cost is None else nanos(cost))
    assert completed.cost == (None if cost is None else pytest.approx(cost)), "for readers of earlier versions"


def test_cached_tokens_are_never_more_than_the_prompt_of_which_they_are_a_part() -> None:
    cost = Prices(CONFIG).of["llama"].cost_of(Usage(prompt_tokens=1_000_000, cached_tokens=5_000_000))
    assert cost == nanos("0.25")


def test_a_request_that_passes_counts_its_prompt_alone_unless_it_generates() -> None:
    sound = read("audio.speech", b"ID3" + bytes(range(256)))
    assert settle("audio.speech", "ok", sound) == Usage(prompt_tokens=PROMPT, estimated=True, cached_unknown=True)
    several = read("generate", b'[{"text": "abcd"}, {"text": "efgh"}]')
    assert settle("generate", "ok", several) == Usage(
        prompt_tokens=PROMPT, completion_tokens=9, estimated=True, cached_unknown=True
    )


@pytest.mark.parametrize("events", [5, 400])
def test_events_with_text_are_counted_where_a_time_between_tokens_is_promised(events: int) -> None:
    tail = read("chat.completions", BEGINNINGS["chat.completions"] + said("chat.completions", " word") * events)
    found = settled(named("chat.completions"), "ok", 200, tail, None, PROMPT, sent=True, chunked=True)
    assert found is not None
    assert found.chunks is not None
    # Those that aren't kept are counted by the share of those that are.
    assert found.chunks == events if events < 30 else events - 10 <= found.chunks <= events
