"""The blocks of an answer continue those of its prompt, as the next turn's prompt has them."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson
import pytest
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.content import LastBlock, PromptEnd
from pointsman_contracts.journey import Target
from pointsman_contracts.message import NO_BYTES, Blob
from pointsman_contracts.response import Usage
from pointsman_core.config import load
from pointsman_core.plugins import PluginError
from pointsman_core.settled_target import salted
from pointsman_edge.answer_plugins.answer_blocks import LONGEST, AnswerBlocks
from pointsman_edge.answer_plugins.text_tokens import read_text_tokens
from pointsman_plugins.bench import make
from pointsman_plugins.prompt import chain, prompt_of
from pointsman_plugins.responding import AnswerEnd, AnswerHead
from pointsman_testing.tiny_tokenizer import write_tokenizer

BLOCK: Final = 4
ROOT: Final = 77
PROMPT: Final = array("I", range(10)).tobytes()
ANSWER: Final = list(range(100, 121))


def end_of(stream: bytes, *, exact: bool) -> PromptEnd:
    """The end of a prompt as the preprocessor tells it."""
    blocks = chain(stream, BLOCK * 4, ROOT)
    parent = blocks[-8:] or ROOT.to_bytes(8, "little")
    last = LastBlock(block_tokens=BLOCK, parent=Blob(parent), rest=Blob(stream[len(blocks) // 8 * BLOCK * 4 :]))
    return PromptEnd(request_id="r", model="m", tokens=len(stream) // 4, exact=exact, ends=(last,))


def head(end: PromptEnd | None, *, api: str = "chat.completions", stream: bool = False, answers: int = 1) -> AnswerHead:
    return AnswerHead(
        request_id="r", api=api, profile="p", model="m", target=Target(model="m", pool="pool"), worker="w", status=200,
        stream=stream, headers={}, answers=answers, block_tokens=BLOCK, end=end,
    )  # fmt: skip


def blocks_named(
    processor: AnswerBlocks, begun: AnswerHead, segments: Sequence[bytes], usage: Usage | None, outcome: str = "ok"
) -> bytes:
    """The names, without the salt of the model."""
    follower = processor.begin_answer(begun)
    if follower is None:
        return b""
    for segment in segments:
        follower.take_segment(segment)
    end = AnswerEnd(outcome=outcome, status=200, usage=usage)
    follower.end_answer(end)
    return salted(end.blocks, "m", "") if end.blocks else NO_BYTES


def usage(prompt: int = 10, completion: int = len(ANSWER)) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion)


def event(**choice: JsonValue) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, **choice}]}) + b"\n\n"


def stream_of(ids: Sequence[int]) -> list[bytes]:
    first = b'data: {"prompt_token_ids":[0,1,2],"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
    return [first, *(event(delta={"content": f"t{each}"}, token_ids=[each]) for each in ids), b"data: [DONE]\n\n"]


WHOLE: Final = chain(PROMPT + array("I", ANSWER[:-1]).tobytes(), BLOCK * 4, ROOT)
"""All blocks of prompt and answer; the last token is never computed."""


@pytest.mark.requirement("OBSERVE-1")
def test_token_ids_of_a_stream_continue_the_prompts_blocks() -> None:
    named = blocks_named(make(AnswerBlocks), head(end_of(PROMPT, exact=True), stream=True), stream_of(ANSWER), usage())
    assert chain(PROMPT, BLOCK * 4, ROOT) + named == WHOLE
    assert len(named) == 5 * 8


@pytest.mark.requirement("OBSERVE-1")
def test_token_ids_of_a_document_continue_the_prompts_blocks_wherever_it_is_split() -> None:
    choice: JsonValue = {"index": 0, "message": {"content": '"token_ids": [1]'}, "token_ids": list[JsonValue](ANSWER)}
    document = orjson.dumps({"choices": [choice], "prompt_token_ids": [1, 2], "usage": {}})
    for cut in (1, 40, len(document) - 3):
        pieces = [document[:cut], document[cut:]]
        named = blocks_named(make(AnswerBlocks), head(end_of(PROMPT, exact=True)), pieces, usage())
        assert chain(PROMPT, BLOCK * 4, ROOT) + named == WHOLE


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        (usage(prompt=11), "ok"),
        (usage(completion=len(ANSWER) + 1), "ok"),
        (None, "ok"),
        (Usage(prompt_tokens=10, completion_tokens=len(ANSWER), estimated=True), "ok"),
        (usage(), "cut_off"),
        (usage(), "client_gone"),
    ],
    ids=["another prompt", "more tokens", "no usage", "estimated", "cut off", "client gone"],
)
def test_nothing_is_named_where_counts_contradict_or_the_answer_is_not_whole(told: Usage | None, outcome: str) -> None:
    begun = head(end_of(PROMPT, exact=True), stream=True)
    assert not blocks_named(make(AnswerBlocks), begun, stream_of(ANSWER), told, outcome)


def test_answers_that_are_not_one_to_one_prompt_are_not_followed() -> None:
    processor, end = make(AnswerBlocks), end_of(PROMPT, exact=True)
    assert processor.begin_answer(head(None)) is None
    assert processor.begin_answer(head(end, answers=2)) is None
    assert processor.begin_answer(head(end, api="embeddings")) is None


def test_an_answer_that_is_too_long_is_not_kept() -> None:
    begun = head(end_of(PROMPT, exact=True), stream=True)
    assert not blocks_named(make(AnswerBlocks), begun, [b" " * LONGEST, *stream_of(ANSWER)], usage())


@pytest.mark.requirement("OBSERVE-1")
def test_a_text_is_cut_into_tokens_by_the_pools_tokenizer_where_the_engine_returns_none(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "t")
    processor = make(AnswerBlocks, tokenize=True)
    processor.check_config(load({"pools": {"pool": {"models": ["m"], "tokenizer": {"path": str(folder)}}}}))
    text = "The train took the left track because the pointsman had set the points."
    tokens = read_text_tokens(str(folder))(text)
    count = len(tokens) // 4
    segments = [event(delta={"content": each}) for each in (text[:20], text[20:])]
    begun = head(end_of(PROMPT, exact=True), stream=True)
    wholes = {
        completion: chain(PROMPT, BLOCK * 4, ROOT)
        + blocks_named(processor, begun, segments, usage(completion=completion))
        for completion in (count, count + 1)
    }
    assert wholes == {
        count: chain(PROMPT + tokens[:-4], BLOCK * 4, ROOT),
        count + 1: chain(PROMPT + tokens, BLOCK * 4, ROOT),
    }
    # Another number of tokens: the engine cut the text otherwise.
    assert not blocks_named(processor, begun, segments, usage(completion=count + 2))
    assert not blocks_named(make(AnswerBlocks), begun, segments, usage(completion=count))


def test_a_tokenizer_that_is_missing_is_refused_with_its_path() -> None:
    config = load({"pools": {"pool": {"models": ["m"], "tokenizer": {"path": "/nowhere"}}}})
    with pytest.raises(PluginError, match=r"pools\.pool\.tokenizer, which can't be used"):
        make(AnswerBlocks, tokenize=True).check_config(config)


@pytest.mark.requirement("OBSERVE-1")
def test_without_a_tokenizer_the_text_continues_the_conversation_as_the_next_turn_repeats_it() -> None:
    def stream(*messages: JsonValue) -> bytes:
        return prompt_of(parse("/v1/chat/completions", orjson.dumps({"model": "m", "messages": list(messages)}))).stream

    question: JsonValue = {"role": "user", "content": "Which track?"}
    answer = 'The "left" one,\n' * 9
    first, following = stream(question), stream(question, {"role": "assistant", "content": answer}, question)
    document = orjson.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}}]})
    named = blocks_named(make(AnswerBlocks), head(end_of(first, exact=False)), [document], None)
    known = chain(first, BLOCK * 4, ROOT) + named
    assert chain(following, BLOCK * 4, ROOT).startswith(known)
    assert len(known) // 8 * BLOCK * 4 > len(first) + len(answer)


def test_a_tool_call_or_a_thought_is_not_named_by_its_text() -> None:
    end = end_of(PROMPT, exact=False)
    deltas: list[JsonValue] = [
        {"reasoning_content": "hm"}, {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    ]  # fmt: skip
    for delta in deltas:
        segments = [event(delta={"content": "x" * 99}), event(delta=delta)]
        assert not blocks_named(make(AnswerBlocks), head(end, stream=True), segments, None)
