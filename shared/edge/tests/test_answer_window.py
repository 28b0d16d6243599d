"""The part of a stream that a stage sees, and the part that leaves after its verdict."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_apis import named
from pointsman_apis.answers import slots_of
from pointsman_apis.streams import Document, EventSplitter, StreamEvent
from pointsman_contracts.journey import AnswerUse
from pointsman_edge.reviewing.answer_window import AnswerWindow

CARD = "4929-1234"


def chat(text: str, choice: int = 0, **more: object) -> Document:
    return {"choices": [{"index": choice, "delta": {"content": text}, "finish_reason": None} | more]}


def event(document: Document) -> StreamEvent:
    return StreamEvent(b"data: " + json.dumps(document).encode() + b"\n\n")


def through(api: str, use: AnswerUse, documents: list[Document], redact: bool = True) -> list[bytes]:
    """The bytes that leave after each verdict of a stage that knows one secret."""
    window = AnswerWindow(named(api), use)
    out: list[bytes] = []

    def ask(last: bool) -> None:
        texts = {text.part: text.text for text in window.held_texts()}
        if redact:
            window.replace_texts({part: text.replace(CARD, "*") for part, text in texts.items() if CARD in text})
        out.append(b"".join(left.encode() for left in window.release_events(last=last)))

    for document in documents:
        window.add_event(event(document))
        if window.is_due:
            ask(last=False)
    ask(last=True)
    return out


def text_in(stream: bytes, api: str = "chat.completions") -> str:
    found: list[str] = []
    for each in EventSplitter().split_bytes(stream):
        found += [slot.text for slot in slots_of(named(api), each.document or {}) if not slot.repeats]
    return "".join(found)


def thought(text: str) -> Document:
    """As vLLM says it under two names (`DeltaMessage`), and OpenRouter under a third."""
    return {"reasoning": text, "reasoning_content": text, "reasoning_details": [{"index": 0, "summary": text}]}


def _named(document: Any, name: str) -> str:
    said = document["choices"][0]["delta"][name]
    return str(said if isinstance(said, str) else said[0]["summary"])


@given(
    st.text(alphabet="ab ", max_size=60),
    st.text(alphabet="ab ", max_size=60),
    st.lists(st.integers(min_value=0, max_value=130), max_size=40),
    st.integers(min_value=len(CARD) + 1, max_value=40),
)
def test_a_secret_no_longer_than_the_overlap_never_leaves_wherever_it_is_cut(
    before: str, after: str, cuts: list[int], size: int
) -> None:
    text = before + CARD + after
    places = sorted({min(cut, len(text)) for cut in cuts})
    pieces = [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
    use = AnswerUse(mode="window", content="text", window=size, overlap=len(CARD))
    out = b"".join(through("chat.completions", use, [chat(piece) for piece in pieces]))
    assert text_in(out) == before + "*" + after
    twice: list[Document] = [{"choices": [{"index": 0, "delta": thought(piece)}]} for piece in pieces]
    out = b"".join(through("chat.completions", use, twice))
    for name in thought(""):
        said = "".join(_named(each.document or {}, name) for each in EventSplitter().split_bytes(out))
        assert said == before + "*" + after, name


def test_a_text_that_goes_on_after_another_one_is_held_as_before() -> None:
    """Models think between calls, too."""
    said = ["I think. ", "Well. ", *f"It was {CARD}."]
    documents: list[Document] = [
        {"choices": [{"index": 0, "delta": {"content" if number == 1 else "reasoning": text}}]}
        for number, text in enumerate(said)
    ]
    use = AnswerUse(mode="window", content="text", window=10, overlap=len(CARD))
    assert text_in(b"".join(through("chat.completions", use, documents))) == "I think. Well. It was *."


@given(st.lists(st.text(max_size=10), max_size=30), st.integers(min_value=2, max_value=30), st.data())
def test_pieces_that_pass_leave_as_they_came_and_in_order(pieces: list[str], size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(min_value=0, max_value=size - 1))
    use = AnswerUse(mode="window", content="text", window=size, overlap=overlap)
    documents = [chat(piece) for piece in pieces]
    out = b"".join(through("chat.completions", use, documents, redact=False))
    assert out == b"".join(event(document).encode() for document in documents)


def test_a_stream_does_not_wait_for_its_end() -> None:
    use = AnswerUse(mode="window", content="text", window=20, overlap=8)
    out = through("chat.completions", use, [chat("word ") for _ in range(40)])
    assert len(out) > 5
    assert all(out[1:])


def test_in_buffer_mode_the_stage_is_asked_once_about_everything() -> None:
    out = through("chat.completions", AnswerUse(mode="buffer"), [chat("word ") for _ in range(400)])
    assert len(out) == 1


def test_a_text_that_is_complete_holds_nothing_back() -> None:
    """Reasoning ends where the answer begins, one choice where it is finished; what follows doesn't wait for them."""
    use = AnswerUse(mode="window", content="text", window=10, overlap=5)
    thinking: Document = {"choices": [{"index": 0, "delta": {"reasoning": "I think."}}]}
    documents = [thinking, chat("", 1, finish_reason="stop"), *(chat("0123456789") for _ in range(4))]
    out = through("chat.completions", use, documents)
    assert b"I think." in out[0]
    assert len([each for each in out if b"0123456789" in each]) > 1


RESPONSES: list[Document] = [
    {"type": "response.created", "response": {"output": []}},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": f"Card {CARD[:5]}"},
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": f"{CARD[5:]} is it."},
    {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": f"Card {CARD} is it."},
    {
        "type": "response.content_part.done", "output_index": 0, "content_index": 0,
        "part": {"type": "output_text", "text": f"Card {CARD} is it."},
    },
    {
        "type": "response.output_item.done", "output_index": 0,
        "item": {"type": "message", "content": [{"type": "output_text", "text": f"Card {CARD} is it."}]},
    },
    {
        "type": "response.completed",
        "response": {"output": [{"content": [{"type": "output_text", "text": f"Card {CARD} is it."}]}]},
    },
]  # fmt: skip
MESSAGES: list[Document] = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": f"{CARD[:3]}"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": f"{CARD[3:]}"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": f"Card {CARD[:7]}"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": f"{CARD[7:]} is it."}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"n": "'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": f'{CARD}"}}'}},
]
COMPLETIONS: list[Document] = [
    # Engines hold back text that may become a stop sequence, but not what spells it.
    {"choices": [{"index": 0, "text": "", "logprobs": {"tokens": [CARD[:4]]}, "token_ids": [4929]}]},
    {"choices": [{"index": 0, "text": CARD[:4], "logprobs": {"tokens": [CARD[4:]]}, "token_ids": [1234]}]},
    {"choices": [{"index": 0, "text": CARD[4:], "logprobs": None, "token_ids": None}]},
]
CALLS: list[Document] = [
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 1, "function": {"arguments": arguments}}]}}]}
    for arguments in (f'{{"n": "{CARD}', '"}')
]


@pytest.mark.parametrize("mode", ["buffer", "window"])
@pytest.mark.parametrize(
    ("api", "documents"),
    [("responses", RESPONSES), ("messages", MESSAGES), ("completions", COMPLETIONS), ("chat.completions", CALLS)],
)
def test_every_place_in_which_an_api_repeats_or_hides_a_text_is_reached(
    api: str, documents: list[Document], mode: str
) -> None:
    use = AnswerUse(mode=mode, content="text", window=12, overlap=10)
    documents = json.loads(json.dumps(documents))
    out = b"".join(through(api, use, documents))
    for piece in (CARD, CARD[:4], CARD[4:], "4929", "1234"):
        assert piece.encode() not in out
    assert b"*" in out


CALL: Document = {"type": "function_call", "arguments": "{}"}
BLOCKS: list[Document] = [{"text": "a"}, {"type": "tool_use", "input": {"n": 1}}]
WHOLE: list[tuple[str, Document, list[str]]] = [
    ("chat.completions", {"choices": [{"message": {"content": "a", "reasoning": "b"}}]}, ["text", "reasoning"]),
    ("completions", {"choices": [{"index": 1, "text": "a"}]}, ["text"]),
    ("embeddings", {"data": [{"embedding": [1.0]}]}, []),
    ("responses", {"object": "response", "error": None, "output": [CALL]}, ["arguments"]),
    ("messages", {"type": "message", "content": BLOCKS}, ["text", "arguments"]),
    ("messages", {"type": "error", "error": {"type": "api_error", "message": "m"}}, ["error"]),
    ("chat.completions", {"error": {"message": "m"}}, ["error"]),
    # One that failed within its answer.
    ("responses", {"object": "response", "error": {"message": "m"}, "output": [CALL]}, ["error", "arguments"]),
    # SGLang's, that of text-generation-inference, and the event of `/v1/responses`.
    ("chat.completions", {"object": "error", "message": "m", "code": 400}, ["error"]),
    ("completions", {"error": "m", "error_type": "validation"}, ["error"]),
    ("responses", {"type": "error", "code": "c", "message": "m", "param": None}, ["error"]),
    (
        "chat.completions",
        {"choices": [{"message": {
            "content": [{"type": "thinking", "thinking": [{"text": "a"}]}, {"type": "text", "text": "b"}],
            "tool_calls": [{"type": "custom", "custom": {"name": "f", "input": "c"}}],
            "audio": {"id": "-", "data": "QUJD", "transcript": "d"},
            "reasoning_details": [{"type": "reasoning.text", "text": "e"}, {"summary": "f"}, {"data": "-"}],
        }}]},
        ["reasoning", "text", "arguments", "text", "reasoning", "reasoning"],
    ),
    (
        "responses",
        {"object": "response", "output": [
            {"type": "mcp_call", "arguments": "{}", "output": "a"},
            {"type": "code_interpreter_call", "code": "b", "outputs": [{"logs": "c"}, {"url": "-"}]},
            {"type": "file_search_call", "results": [{"text": "d"}, {"text": "e"}]},
        ]},
        ["arguments", "result", "arguments", "result", "result", "result"],
    ),
    (
        "messages",
        {"type": "message", "content": [
            {"type": "mcp_tool_result", "content": [{"type": "text", "text": "a"}]},
            {"type": "text", "text": "b", "citations": [{"cited_text": "c"}, {"cited_text": "d"}]},
        ]},
        ["result", "text", "result", "result"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("api", "document", "kinds"), WHOLE)
def test_the_texts_of_a_whole_answer_are_found_and_can_be_replaced(
    api: str, document: Document, kinds: list[str]
) -> None:
    slots = slots_of(named(api), document)
    assert [slot.kind for slot in slots] == kinds
    assert len({slot.part for slot in slots}) == len(slots)
    for slot in slots:
        slot.replace_text('{"n": 2}')
    assert all(json.loads(slot.text) == {"n": 2} for slot in slots_of(named(api), document))


@pytest.mark.parametrize(
    ("api", "whole", "piece"),
    [
        (
            "messages",
            {"type": "content_block_delta", "index": 0,
             "delta": {"type": "citations_delta", "citation": {"cited_text": f"Card {CARD}"}}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It is said there."}},
        ),
        (
            "responses",
            {"type": "response.output_item.done", "output_index": 0,
             "item": {"type": "mcp_call", "output": f"Card {CARD}"}},
            {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "It is said there."},
        ),
    ],
)  # fmt: skip
def test_text_of_a_tool_or_a_source_comes_whole_and_holds_up_nothing(
    api: str, whole: Document, piece: Document
) -> None:
    use = AnswerUse(mode="window", content="text", window=10, overlap=9)
    out = through(api, use, json.loads(json.dumps([piece, whole, piece, piece])))
    assert CARD.encode() not in b"".join(out)
    assert b"Card *" in out[2]


def test_a_window_may_end_where_a_sentence_does() -> None:
    use = AnswerUse(mode="window", content="text", window=20, overlap=0, sentences=True)
    pieces = ["All is", " well on", ' it."', " And so", " on and on", " and on and", " on"]
    asked = through("chat.completions", use, [chat(piece) for piece in pieces])
    assert [text_in(left) for left in asked] == ['All is well on it."', " And so on and on and on and", " on"]
