"""Token usage in the answers of every API, whole and streamed, however they arrive."""

import json
import tracemalloc
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_apis import named
from pointsman_apis.usage import KEPT
from pointsman_contracts.response import SpecialTokens, Usage

TEXT = 'They said "usage": {"prompt_tokens": 999}. ' + "word " * 40
CHAT_USAGE = {"prompt_tokens": 31, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}
RESPONSE_USAGE = {
    "input_tokens": 31,
    "input_tokens_details": {"cached_tokens": 16},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
}
MESSAGE_USAGE = {"input_tokens": 10, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 16}
TOOL = {"type": "tool_use", "id": "t", "name": "f", "input": {"usage": {"kind": "none"}}}
EXPECTED = Usage(prompt_tokens=31, completion_tokens=7, cached_tokens=16)
OF_MESSAGES = replace(EXPECTED, special=SpecialTokens(cache_write=5))
UNCACHED = Usage(prompt_tokens=31, completion_tokens=0, cached_unknown=True)


def stream(*events: Mapping[str, object], done: bool = False) -> bytes:
    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return ("".join(lines) + ("data: [DONE]\n\n" if done else "")).encode()


def whole(**members: object) -> bytes:
    return json.dumps(members).encode()


ANSWERS = [
    ("chat.completions", whole(choices=[{"message": {"content": TEXT}}], usage=CHAT_USAGE), EXPECTED),
    ("completions", whole(choices=[{"text": TEXT}], usage=CHAT_USAGE), EXPECTED),
    (
        # As vLLM sends it when it is asked for them.
        "chat.completions",
        whole(
            choices=[{"message": {"content": TEXT}}],
            usage=CHAT_USAGE,
            prompt_logprobs=[{"1": {"logprob": -0.5, "decoded_token": "usage"}}] * 40,
            prompt_token_ids=[*range(9000)],
        ),
        EXPECTED,
    ),
    ("embeddings", whole(data=[{"embedding": [0.5] * 50}], usage={"prompt_tokens": 31}), UNCACHED),
    ("responses", whole(output=[{"text": TEXT}], usage=RESPONSE_USAGE, user=None), EXPECTED),
    ("messages", whole(content=[{"text": TEXT}, TOOL], usage=MESSAGE_USAGE | {"output_tokens": 7}), OF_MESSAGES),
    (
        "chat.completions",
        stream(
            {"type": "chunk", "choices": [{"delta": {"content": TEXT}}], "usage": None},
            {"type": "chunk", "choices": [], "usage": CHAT_USAGE},
            done=True,
        ),
        EXPECTED,
    ),
    (
        "completions",
        stream(
            {"type": "x", "choices": [{"text": TEXT}]}, {"type": "x", "choices": [], "usage": CHAT_USAGE}, done=True
        ),
        EXPECTED,
    ),
    (
        "responses",
        stream(
            {"type": "response.created", "response": {"output": [], "usage": None}},
            {"type": "response.output_text.delta", "delta": TEXT},
            {"type": "response.completed", "response": {"output": [{"text": TEXT}], "usage": RESPONSE_USAGE}},
        ),
        EXPECTED,
    ),
    (
        # As Anthropic sends it: the prompt's tokens at the beginning only.
        "messages",
        stream(
            {"type": "message_start", "message": {"content": [], "usage": MESSAGE_USAGE | {"output_tokens": 1}}},
            *({"type": "content_block_delta", "delta": {"text": TEXT}} for _ in range(60)),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
        ),
        OF_MESSAGES,
    ),
    (
        # As vLLM sends it: everything at the end.
        "messages",
        stream(
            {"type": "message_start", "message": {"usage": {"input_tokens": 0, "output_tokens": 0}}},
            {"type": "content_block_delta", "delta": {"text": TEXT}},
            {"type": "message_delta", "usage": MESSAGE_USAGE | {"output_tokens": 7}},
            {"type": "message_stop"},
        ),
        OF_MESSAGES,
    ),
]


@pytest.mark.requirement("S3-17")
@pytest.mark.parametrize(("api", "answer", "usage"), ANSWERS)
@given(data=st.data())
def test_the_usage_of_every_api_is_read_wherever_the_answer_is_cut_into_pieces(
    api: str, answer: bytes, usage: Usage, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(min_value=0, max_value=len(answer)), max_size=8)))
    reader = named(api).usage()
    for start, stop in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        reader.follow_bytes(answer[start:stop])
    assert reader.read_usage() == usage


UNREADABLE = [
    "9" * 400,
    "9" * 30,
    str(2**53 + 1),
    "-1",
    "-0.6",
    "1e400",
    "NaN",
    "Infinity",
    "true",
    "null",
    '"31"',
    "[31]",
]


@pytest.mark.parametrize(
    ("api", "report", "special"),
    [
        ("messages", {"cache_creation_input_tokens": 9, "cache_creation": {"ephemeral_1h_input_tokens": 4}},
         SpecialTokens(cache_write=9, cache_write_1h=4)),
        ("messages", {"service_tier": "batch"}, SpecialTokens(tier="batch")),
        ("messages", {"service_tier": "standard", "cache_creation": None}, None),
        ("chat.completions", {"prompt_tokens_details": {"cache_write_tokens": 3, "audio_tokens": 2, "image_tokens": 1}},
         SpecialTokens(cache_write=3, audio_prompt=2, image_prompt=1)),
        ("chat.completions", {"completion_tokens_details": {"audio_tokens": 6.0, "reasoning_tokens": 0}},
         SpecialTokens(audio_completion=6)),
        ("chat.completions", {"prompt_tokens_details": {"audio_tokens": 0, "cached_tokens": 0}}, None),
        ("chat.completions", {"prompt_tokens_details": {"audio_tokens": "many"}}, None),
        ("images.generations", {"input_tokens_details": {"image_tokens": 5, "text_tokens": 2}},
         SpecialTokens(image_prompt=5)),
    ],
)  # fmt: skip
def test_tokens_with_prices_of_their_own_are_read(
    api: str, report: dict[str, object], special: SpecialTokens | None
) -> None:
    reader = named(api).usage()
    counts = {"prompt_tokens": 9, "completion_tokens": 7}
    if api != "chat.completions":
        counts = {"input_tokens": 9, "output_tokens": 7}
    reader.follow_bytes(whole(usage=counts | report))
    usage = reader.read_usage()
    assert usage is not None
    assert usage.special == special


def test_the_service_tier_of_an_answer_is_read_beside_its_usage() -> None:
    reader = named("chat.completions").usage()
    reader.follow_bytes(whole(service_tier="auto", usage=CHAT_USAGE) + whole(service_tier="flex"))
    assert reader.service_tier() == "flex"


@pytest.mark.parametrize("count", UNREADABLE)
def test_a_number_that_no_request_can_have_used_is_no_count(count: str) -> None:
    reader = named("chat.completions").usage()
    reader.follow_bytes(b'{"usage":{"prompt_tokens":%b,"completion_tokens":7}}' % count.encode())
    assert reader.read_usage() == Usage(completion_tokens=7, cached_unknown=True)


@pytest.mark.parametrize("count", [*UNREADABLE, None])
def test_of_three_counts_two_suffice(count: str | None) -> None:
    for lacks, has, other in (("prompt", "completion", 7), ("completion", "prompt", 31)):
        reader = named("chat.completions").usage()
        members = f'"{has}_tokens":{other},"total_tokens":38'
        if count is not None:
            members += f'.0,"{lacks}_tokens":{count}'
        reader.follow_bytes(f'{{"usage":{{{members}}}}}'.encode())
        assert reader.read_usage() == Usage(prompt_tokens=31, completion_tokens=7, cached_unknown=True)


@pytest.mark.parametrize("api", ["chat.completions", "responses", "messages"])
def test_counts_that_are_written_as_floats_are_rounded(api: str) -> None:
    report = {"chat.completions": CHAT_USAGE, "responses": RESPONSE_USAGE}.get(
        api, MESSAGE_USAGE | {"output_tokens": 7}
    )
    reader = named(api).usage()
    text = json.dumps({"content": [], "usage": report})
    reader.follow_bytes(text.replace(": 31", ": 31.0").replace(": 7", ": 7.2").replace(": 16", ": 1.6e1").encode())
    assert reader.read_usage() == (OF_MESSAGES if api == "messages" else EXPECTED)


@pytest.mark.parametrize("api", ["chat.completions", "messages"])
@pytest.mark.parametrize(
    "answer",
    [
        whole(content=[TOOL], usage=None),
        stream({"type": "content_block_start", "content_block": TOOL}, {"type": "message_stop"}),
        whole(choices=[{"message": {"content": TEXT}}]),
        b'{"usage"',
        b'{"usage":[1],"x":"usage"}',
    ],
)
def test_an_answer_without_a_report_has_no_usage_whatever_else_is_called_so(api: str, answer: bytes) -> None:
    reader = named(api).usage()
    reader.follow_bytes(answer)
    assert reader.read_usage() is None


@pytest.mark.parametrize("api", ["chat.completions", "messages"])
def test_of_an_answer_of_any_length_no_more_than_its_ends_is_held(api: str) -> None:
    reader = named(api).usage()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            reader.follow_bytes(bytes(KEPT))
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 8 * KEPT
    assert reader.size == 100 * KEPT


def test_a_message_that_breaks_off_leaves_what_its_beginning_said() -> None:
    reader = named("messages").usage()
    start = {"type": "message_start", "message": {"usage": MESSAGE_USAGE | {"output_tokens": 1}}}
    reader.follow_bytes(stream(start) + b"x" * 20_000)
    assert reader.read_usage() == replace(OF_MESSAGES, completion_tokens=1)
