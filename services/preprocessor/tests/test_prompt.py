"""The prompt as tokens and blocks: what conversations share, and what they must not."""

import base64
from typing import Final, cast

import orjson
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_plugins.prompt import (
    BYTES_PER_TOKEN,
    MEDIA_TOKENS,
    MOST_BLOCKS,
    Prompt,
    Prompts,
    chain,
    chain_grown,
    prompt_of,
)

BLOCK: Final = 16 * BYTES_PER_TOKEN


def prompt(path: str, **fields: JsonValue) -> Prompt:
    return prompt_of(parse(path, orjson.dumps({"model": "m", **fields})))


def chat(messages: list[dict[str, JsonValue]], **fields: JsonValue) -> Prompt:
    return prompt("/v1/chat/completions", messages=cast("JsonValue", messages), **fields)


def blocks(described: Prompt) -> list[bytes]:
    hashes = chain(described.stream, BLOCK, 0)
    return [hashes[start : start + 8] for start in range(0, len(hashes), 8)]


def turns(count: int) -> list[dict[str, JsonValue]]:
    return [
        {"role": ("user", "assistant")[turn % 2], "content": f"turn {turn} " + "lorem ipsum " * (turn + 3)}
        for turn in range(count)
    ]


@pytest.mark.requirement("S4-12")
@pytest.mark.parametrize("count", range(1, 12))
def test_the_next_turn_matches_the_whole_prefix_of_this_one(count: int) -> None:
    tools: JsonValue = [{"type": "function", "function": {"name": "f"}}]
    before = blocks(chat(turns(count), tools=tools))
    after = blocks(chat(turns(count + 1), tools=tools))
    assert before
    assert after[: len(before)] == before


@pytest.mark.requirement("S4-12")
@given(st.lists(st.text(max_size=80), min_size=1, max_size=6), st.text(max_size=80))
def test_a_grown_conversation_keeps_every_block_whatever_it_says(texts: list[str], more: str) -> None:
    messages: list[dict[str, JsonValue]] = [{"role": "user", "content": text.replace("\0", "")} for text in texts]
    grown: list[dict[str, JsonValue]] = [*messages, {"role": "user", "content": more.replace("\0", "")}]
    before = blocks(chat(messages))
    assert blocks(chat(grown))[: len(before)] == before


@pytest.mark.requirement("S4-6", "S4-22")
@pytest.mark.parametrize(
    "change",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"documents": [{"text": "x"}]},
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_chats_of_equal_text_but_other_tools_or_template_share_no_block(change: dict[str, JsonValue]) -> None:
    plain, changed = blocks(chat(turns(4))), blocks(chat(turns(4), **change))
    assert plain
    assert not set(plain) & set(changed)


def test_the_end_of_the_prompt_changes_no_prefix() -> None:
    assert chat(turns(4), add_generation_prompt=True, temperature=0.5, stream=True) == chat(turns(4))


@pytest.mark.requirement("S4-5", "S4-7")
def test_messages_of_other_roles_are_other_prefixes() -> None:
    """Structure counts, not just text."""
    message = "lorem ipsum " * 20
    as_user = blocks(chat([{"role": "user", "content": message}]))
    as_system = blocks(chat([{"role": "system", "content": message}]))
    assert not set(as_user) & set(as_system)


def test_only_full_blocks_are_described() -> None:
    stream = bytes(range(256))
    assert len(chain(stream, 100, 0)) == 2 * 8
    assert chain(stream[:99], 100, 0) == b""
    assert chain(stream[:200], 100, 0) == chain(stream, 100, 0)


def test_each_hash_is_that_of_its_block_seeded_with_the_one_before() -> None:
    stream = bytes(range(200))
    first = xxhash.xxh3_64_intdigest(stream[:100], 7)
    second = xxhash.xxh3_64_intdigest(stream[100:], first)
    assert chain(stream, 100, 7) == first.to_bytes(8, "little") + second.to_bytes(8, "little")


def test_another_root_changes_every_hash() -> None:
    stream = bytes(1000)
    one, other = chain(stream, 100, 1), chain(stream, 100, 2)
    assert all(one[at : at + 8] != other[at : at + 8] for at in range(0, len(one), 8))


def test_a_prompt_of_any_length_is_described_by_at_most_4096_blocks() -> None:
    assert len(chain(bytes(10_000), 1, 0)) == MOST_BLOCKS * 8


def test_text_counts_a_token_for_four_bytes() -> None:
    assert prompt("/v1/completions", prompt="x" * 401).tokens == 101
    assert prompt("/v1/completions", prompt="ü" * 400).tokens == 200
    assert prompt("/v1/completions", prompt=["x" * 40, "y" * 40]).tokens == 20


def test_token_ids_are_counted_exactly() -> None:
    described = prompt("/v1/completions", prompt=list(range(100)))
    assert (described.tokens, described.exact) == (100, True)
    assert len(blocks(described)) == 100 // 16
    several = prompt("/v1/embeddings", input=[[1, 2, 3], [4]])
    assert (several.tokens, several.exact) == (4, True)


def test_an_image_counts_the_same_whatever_its_size_and_is_distinguished_from_another() -> None:
    def with_image(data: bytes) -> Prompt:
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        return chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])

    small, large = with_image(b"a"), with_image(b"b" * 200_000)
    assert small.tokens == large.tokens
    assert MEDIA_TOKENS <= small.tokens < MEDIA_TOKENS + 32
    assert not set(blocks(small)) & set(blocks(large))
    assert blocks(small) == blocks(with_image(b"a"))


@pytest.mark.parametrize("size", [1, 200_000])
def test_a_screenshot_that_a_tool_returns_counts_like_any_image(size: int) -> None:
    data = base64.b64encode(b"a" * size).decode()
    url = f"data:image/png;base64,{data}"
    source: JsonValue = {"type": "base64", "media_type": "image/png", "data": data}
    shown: JsonValue = ["Look.", {"type": []}, {"type": "image", "source": source}]
    result: JsonValue = {"type": "tool_result", "tool_use_id": "t", "content": shown}
    asked: list[tuple[str, dict[str, JsonValue]]] = [
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [result]}]}),
        (
            "/v1/responses",
            {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "image_url": url}]}]},
        ),
        (
            "/v1/responses",
            {"input": [{"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": url}}]},
        ),
    ]
    for path, fields in asked:
        body = parse(path, orjson.dumps({"model": "m", **fields}))
        assert body.media == ("vision",)
        assert MEDIA_TOKENS <= prompt_of(body).tokens < MEDIA_TOKENS + 64


def test_vectors_have_a_length_but_no_prefix() -> None:
    described = prompt("/v1/embeddings", input="x" * 400)
    assert (described.tokens, described.stream) == (100, b"")


def test_embeddings_of_conversations_and_pictures_have_their_length_and_need_vision() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    for fields in (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 400}, picture]}]},
        {"input": [{"text": "x" * 400, "image": "data:image/png;base64,AAAA"}]},
    ):
        body = parse("/v1/embeddings", orjson.dumps({"model": "m", **fields}))
        described = prompt_of(body)
        assert body.media == ("vision",)
        assert MEDIA_TOKENS + 100 <= described.tokens < MEDIA_TOKENS + 164
        assert described.stream == b""


@pytest.mark.requirement("S4-9")
def test_a_text_completion_that_continues_another_shares_its_blocks() -> None:
    text = "lorem ipsum " * 40
    before, after = blocks(prompt("/v1/completions", prompt=text)), blocks(prompt("/v1/completions", prompt=text * 2))
    assert before
    assert after[: len(before)] == before
    assert not set(blocks(chat([{"role": "user", "content": text}]))) & set(before)


def test_responses_and_messages_grow_like_chats() -> None:
    items = cast("JsonValue", turns(4))
    for path, name, head in (
        ("/v1/responses", "input", {"instructions": "be kind"}),
        ("/v1/messages", "messages", {"system": "be kind", "max_tokens": 5}),
    ):
        before = blocks(prompt(path, **{name: items}, **head))
        after = blocks(prompt(path, **{name: cast("JsonValue", turns(6))}, **head))
        other = blocks(prompt(path, **{name: items}, **(head | {next(iter(head)): "be brief"})))
        assert after[: len(before)] == before
        assert not set(other) & set(before)


def test_a_text_input_of_responses_is_one_user_message() -> None:
    text = prompt("/v1/responses", input="hello")
    assert text == prompt("/v1/responses", input=[{"role": "user", "content": "hello"}])


@given(st.lists(st.tuples(st.integers(0, 900), st.binary(max_size=300)), min_size=1, max_size=6), st.integers(1, 40))
def test_blocks_of_a_prompt_that_goes_on_with_another_are_named_as_if_it_were_the_first(
    edits: list[tuple[int, bytes]], limit: int
) -> None:
    prompts: Prompts = {}
    stream = b""
    for at, put in edits:
        stream = stream[:at] + put
        assert chain_grown(stream, BLOCK, 7, limit, prompts) == chain(stream, BLOCK, 7, limit)
        assert chain_grown(stream, BLOCK, 9, limit, prompts) == chain(stream, BLOCK, 9, limit)
