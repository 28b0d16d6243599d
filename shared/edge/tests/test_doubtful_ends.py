"""Ends of answers that may be their engine's fault: nothing said, or one short text over and over."""

import json
from collections.abc import Iterable

import pytest

from pointsman_apis import named
from pointsman_edge.sending.doubtful_ends import doubt_of

CHAT, COMPLETIONS = "chat.completions", "completions"


def doubt(api: str, body: bytes, outcome: str = "ok", tokens: int = 99) -> str:
    tail = named(api).usage()
    for start in range(0, len(body), 700):
        tail.follow_bytes(body[start : start + 700])
    return doubt_of(named(api), tail, outcome, tokens)


def chat(words: Iterable[str], reason: str | None = "length") -> bytes:
    """A stream, an event for each word."""
    head = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        *(({"content": word}, None) for word in words),
    ]
    if reason is not None:
        deltas.append(({}, reason))
    events = [{**head, "choices": [{"index": 0, "delta": one, "finish_reason": end}]} for one, end in deltas]
    done = b"" if reason is None else b"data: [DONE]\n\n"
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + done


def whole(text: str, reason: str = "length") -> bytes:
    message: dict[str, object] = {"role": "assistant", "content": text, "tool_calls": []}
    return json.dumps({"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": reason}]}).encode()


GOOD = ["The", " answer", " is", " as", " follows", ":"]


@pytest.mark.parametrize("token", ["!", "lock", " court", "<s>", "1", "的", "<unk>", '"'])
def test_an_answer_that_becomes_one_token_over_and_over_until_its_limit_is_in_doubt(token: str) -> None:
    """As in vllm-project/vllm #14126 and #51039, ggml-org/llama.cpp #7421."""
    assert doubt(CHAT, chat([*GOOD, *[token] * 200])) == "repeating"
    assert doubt(CHAT, chat([*GOOD, *[token * 3, token * 4] * 60])) == "repeating", "several tokens an event"
    assert doubt(CHAT, whole("".join(GOOD) + token * 4000)) == "repeating"
    assert doubt(COMPLETIONS, json.dumps({"choices": [{"text": token * 50, "finish_reason": "length"}]}).encode())
    assert doubt(CHAT, chat([*GOOD, *[token] * 200], reason=None), "client_gone") == "repeating"


@pytest.mark.parametrize(
    "body",
    [
        chat([*GOOD, *["="] * 200, "\n", "A", " table"]),
        chat([*GOOD, *["!"] * 200], "stop"),
        chat([*GOOD, *["\n"] * 200]),
        chat([*GOOD, *["  "] * 200]),
        chat(["The", " cat", " sits", " on", " the", " mat", "."] * 40),
        chat([*GOOD, *["!"] * 8]),
        whole("".join(GOOD) + "=" * 80 + "\n| a |"),
        whole("!" * 4000, "stop"),
        whole("".join(GOOD) + "\n" * 4000),
        whole("0" * 16),
    ],
)
def test_an_answer_that_repeats_something_and_goes_on_or_ends_by_itself_is_not(body: bytes) -> None:
    assert doubt(CHAT, body) == ""


@pytest.mark.parametrize("outcome", ["cut_off", "blocked", "timeout"])
def test_an_answer_that_broke_off_is_judged_by_that_alone(outcome: str) -> None:
    assert doubt(CHAT, chat([*GOOD, *["!"] * 200], reason=None), outcome) == ""


def test_an_answer_without_a_word_is_in_doubt_and_a_short_one_is_not() -> None:
    for said, expected in (("", "empty"), ("yes", "")):
        assert doubt(CHAT, whole(said, "stop"), tokens=1) == expected
        assert doubt(CHAT, chat([said], "stop"), tokens=1) == expected
    assert doubt(CHAT, whole("", "content_filter"), tokens=1) == ""
    assert doubt("embeddings", b'{"data":[{"embedding":[0.5]}]}', tokens=0) == ""


@pytest.mark.parametrize("end", ["", '"', '"}]}', 'b", "finish_reason": "length"}]}'])
def test_a_document_that_repeats_itself_for_long_and_does_not_end_so_is_judged_too(end: str) -> None:
    """A regular expression would take minutes."""
    for text in ("a" * 200_000, "ab" * 100_000):
        for outcome in ("ok", "client_gone"):
            assert doubt(CHAT, b'{"choices":[{"message":{"content":"' + (text + end).encode(), outcome) == ""
