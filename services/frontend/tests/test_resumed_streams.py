"""Wherever a stream breaks off, and however often, its client gets the answer of one engine that never failed."""

import asyncio
import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.messages import MESSAGES
from pointsman_apis.responses import RESPONSES
from pointsman_apis.streams import EventSplitter
from pointsman_frontend.domain.resuming.question import CantContinue
from pointsman_frontend.domain.resuming.resumable import Setting
from pointsman_frontend.domain.resuming.resuming import Resuming
from pointsman_testing.answering_engine import AnsweringEngine
from pointsman_testing.continuing_engine import Body, ContinuingEngine
from pointsman_testing.cut_streams import CUTS, FIRST, OTHER, CutStream, ask, expected, read, resumed

BROKE: Final = (3059,)
"""Streams that weren't continued right once: a prompt of several that had not begun."""


VARIANTS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True}, "n": 2},
    {"n": 3, "seed": 5},
    {"stop": ["STOP", "Zugz"], "stream_options": {"include_usage": True}},
    {"stop": " the", "n": 2},
    {"stop": ["ST"], "include_stop_str_in_output": True},
    {"max_tokens": None},
    {"min_tokens": 30, "max_tokens": 40, "ignore_eos": True},
    {"frequency_penalty": 0.75, "logit_bias": {"258": 1.5}},
    {"return_token_ids": True},
    {"return_token_ids": True, "stop": ["STOP"], "n": 2},
    {"max_tokens": 200, "stream_options": {"include_usage": True}},
)
LOGPROBS: Final = {CHAT.name: {"logprobs": True, "top_logprobs": 2}, COMPLETIONS.name: {"logprobs": 2}}


THINKING: Final[Body] = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 80}


def variant(number: int) -> tuple[Api, Body]:
    more: Body
    api = (CHAT, COMPLETIONS)[number % 2]
    chosen = number // 2 % (len(VARIANTS) + 2)
    if chosen < len(VARIANTS):
        more = dict(VARIANTS[chosen])
    elif chosen == len(VARIANTS):
        more = LOGPROBS[api.name] | {"stream_options": {"include_usage": True}}
    else:
        more = {"prompt": ["One", "Two", "Three"], "n": 2} if api is COMPLETIONS else {"max_completion_tokens": 30}
        more["stream_options"] = {"include_usage": True}
    if more.get("max_tokens", 1) is None and api is COMPLETIONS:
        del more["max_tokens"]
    if "stream_options" in more and number % 5 == 2:
        more["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if api is CHAT and number % 3 == 1:
        more = THINKING | more
    return api, ask(api, number, **more)


async def holds(number: int) -> None:
    dice = random.Random(number)
    api, body = variant(number)
    run = CutStream(api, body)
    cuts = [dice.randrange(2**31) for _ in range(dice.choice((1, 1, 1, 2, 3)))]
    got = await run.cut(cuts, dice)
    assert read(got) == expected(api, body), (number, body, cuts)
    assert bool(run.begun) == bool(run.questions)
    assert len(run.begun) <= 1 + len(run.failures)
    if not body.get("return_token_ids"):
        assert b'token_ids":[' not in got


def test_every_cut_stream_is_continued_as_if_it_had_not_been_cut() -> None:
    async def all_hold() -> None:
        for number in (*BROKE, *range(CUTS)):
            await holds(number)

    asyncio.run(all_hold())


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=lambda api: api.name)
async def test_a_cut_at_any_byte_of_a_stream_is_no_seam(api: Api) -> None:
    body = ask(api, 1, max_tokens=12, stream_options={"include_usage": True})
    whole = FIRST.stream(api.path, body | {"return_token_ids": True})
    for at in range(0, len(whole) + 1, 1 if CUTS >= 2000 else 7):
        assert read(await CutStream(api, body).cut([at], random.Random(at))) == expected(api, body), at


UNTRUE: Final[Mapping[str, ContinuingEngine]] = {
    "another prompt": ContinuingEngine(faults=frozenset({"other_prompt"})),
    "an error in the stream": ContinuingEngine(faults=frozenset({"error"})),
    "aborted": ContinuingEngine(faults=frozenset({"abort"})),
    "no token ids": ContinuingEngine(tells_ids=False),
}


@pytest.mark.parametrize("name", UNTRUE)
async def test_an_engine_that_does_not_give_the_rest_is_left_for_the_next_one(name: str) -> None:
    for number in range(20):
        body = ask(COMPLETIONS, number, max_tokens=80, ignore_eos=True, stream_options={"include_usage": True})
        run = CutStream(COMPLETIONS, body, others=(UNTRUE[name], OTHER))
        got = await run.cut([3000 + number], random.Random(number))
        assert read(got) == expected(COMPLETIONS, body)
        assert len(run.failures) == 1


@pytest.mark.parametrize("fault", ["error", "abort"])
async def test_an_engine_that_ends_an_answer_for_its_own_sake_has_broken_it_off(fault: str) -> None:
    body = ask(CHAT, 3, max_tokens=80, ignore_eos=True, stream_options={"include_usage": True})
    run = CutStream(CHAT, body, first=ContinuingEngine(faults=frozenset({fault})))
    got = await run.cut([2**31 - 1], random.Random(1))
    assert read(got) == expected(CHAT, body)
    assert run.questions


TEXT_BODY: Final[Mapping[str, Any]] = {"max_tokens": 40, "ignore_eos": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=lambda api: api.name)
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("name", ["honest", "repeats", "counts all"])
async def test_by_text_the_rest_follows_whatever_the_engine_adds(api: Api, kind: str, name: str) -> None:
    """It may name another id and model, repeat the role and the text, and count all tokens. The tokens that it cuts the
    text into are its own, so the number of tokens is about the same."""
    first = ContinuingEngine(tells_ids=False, together=1)
    other = ContinuingEngine(
        tells_ids=False,
        together=1,
        model="x",
        answer_id="9",
        repeats=name == "repeats",
        counts_all=name == "counts all",
    )
    for number in range(12):
        body = ask(api, number, **TEXT_BODY)
        whole = first.stream(api.path, body)
        at = len(whole) // 2 + 31 * number
        run = CutStream(api, body, setting="text", kind=kind, first=first, others=(other,))
        if name == "repeats" and api is COMPLETIONS:
            continue  # with the prompt before it: no engine does that without `echo`
        got, plain = read(await run.cut([at], random.Random(number))), read(whole)
        assert [question.form for question in run.questions] == ["text"]
        assert got["heads"] == plain["heads"]
        assert got["choices"][0]["roles"] == plain["choices"][0]["roles"]
        mine, theirs = got["choices"][0]["text"], plain["choices"][0]["text"]
        if not run.questions[0].overlap:  # the template takes spaces away
            assert mine[: len(theirs)] == theirs[: len(mine)]
        assert mine.startswith(run.questions[0].tail)
        assert run.questions[0].tail not in mine[len(run.questions[0].tail) :]
        assert [reason for reason, _ in got["choices"][0]["ends"]] == ["length"]
        (usage,) = got["usages"]
        # Before the seam, events are counted: a token within a character has none.
        assert 25 <= usage["completion_tokens"] <= 44


async def test_a_stop_string_that_begins_in_the_text_of_the_client_ends_the_answer() -> None:
    """Engines that hold no text back send the beginning of a stop string, and only see the rest of it afterwards."""
    run = CutStream(COMPLETIONS, ask(COMPLETIONS, 1, stop=["xyz"], max_tokens=30), setting="text", kind="sglang")
    resuming = resumed(COMPLETIONS, run.body, "text", "sglang")
    assert resuming is not None
    head = '"id":"a","object":"text_completion","created":1,"model":"m"'
    resuming.sent = lambda: json.dumps(run.body).encode()
    event = f'data: {{{head},"choices":[{{"index":0,"text":"abx","finish_reason":null}}]}}\n\n'
    resuming.kept.keep_events(event.encode())
    resuming.break_off()
    question = resuming.next_question(0, None)
    assert question is not None
    rest = resuming.read_rest(question)
    out = rest.join(b'data: {"choices":[{"index":0,"text":"y","finish_reason":null}]}\n\n')
    out += rest.join(b'data: {"choices":[{"index":0,"text":"z, and more","finish_reason":null}]}\n\n')
    assert rest.finished
    texts = [json.loads(event.data)["choices"][0] for event in EventSplitter().split_bytes(out)]
    assert [(choice["text"], choice["finish_reason"]) for choice in texts] == [("y", None), ("", "stop")]


async def test_choices_that_have_ended_are_not_asked_for_again() -> None:
    for number in range(30):
        dice = random.Random(number)
        body = ask(CHAT, number, n=3, seed=number)
        run = CutStream(CHAT, body)
        whole = FIRST.stream(CHAT.path, body | {"return_token_ids": True})
        await run.cut([len(whole) * 3 // 4], dice)
        before = read(whole[: whole.rfind(b"\n\n", 0, len(whole) * 3 // 4) + 2] + b"data: [DONE]\n\n")
        ended = {index for index, choice in before["choices"].items() if choice["ends"]}
        assert ended.isdisjoint(question.choice for question in run.questions)


def found_form(api: Api, body: Body, setting: Setting, kind: str, *deltas: Body) -> str:
    """The form in which the rest of a stream is asked for after a few events, or after these of a chat."""
    resuming = resumed(api, body, setting, kind)
    if resuming is None:
        return "no"
    engine = ContinuingEngine(tells_ids=kind == "vllm")
    if api in (MESSAGES, RESPONSES):
        resuming.sent = lambda: json.dumps(body).encode()
        for event in itertools.islice(AnsweringEngine().events(api.path, body), 6):
            resuming.kept.keep_events(event)
        return form_found(resuming)
    sent = body | {"return_token_ids": resuming.asks_ids}
    resuming.sent = lambda: json.dumps(sent).encode()
    events = (
        itertools.islice(engine.events(api.path, sent), 4)
        if not deltas
        else [chat_event(delta, tells_ids=kind == "vllm") for delta in deltas]
    )
    for event in events:
        resuming.kept.keep_events(event)
    return form_found(resuming)


def form_found(resuming: Resuming) -> str:
    try:
        resuming.break_off()
    except CantContinue:
        return "no"
    return resuming.form


def chat_event(delta: Body, *, tells_ids: bool = True) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, "token_ids": [5] if tells_ids else None}
    event = {"id": "a", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    event |= {"prompt_token_ids": [1] if tells_ids else None}
    return b"data: %b\n\n" % json.dumps(event).encode()


TOOL: Final[Body] = {"tools": [{"type": "function", "function": {"name": "f"}}]}
CALL: Final[Body] = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}
IMAGE: Final[Body] = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
Probe = tuple[Api, Body, tuple[Body, ...]]
"""A request, and the deltas of its answer; none for an answer of text."""


def both(**more: Any) -> list[Probe]:
    return [(api, ask(api, 1, **more), ()) for api in (CHAT, COMPLETIONS)]


def chat(*deltas: Body, **more: Any) -> list[Probe]:
    return [(CHAT, ask(CHAT, 1, **more), deltas)]


def answer_of(api: Api) -> Body:
    asked = (
        {"messages": [{"role": "user", "content": "Tell"}], "max_tokens": 9} if api is MESSAGES else {"input": "Tell"}
    )
    return {"model": "m", "stream": True, "temperature": 0, **asked}


def answers(*, thinks: bool = False, **more: Any) -> list[Probe]:
    own = {MESSAGES.name: ("output_config", "tools"), RESPONSES.name: ("text", "tools")}
    more |= THINKING if thinks else {}
    left = {"max_tokens", "output_config", "text"}
    return [
        (api, answer_of(api) | {name: more[name] for name in more if name not in left or name in own[api.name]}, ())
        for api in (RESPONSES, MESSAGES)
    ]


ROWS: Final[Mapping[str, list[Probe]]] = {
    "chats": chat(),
    "completions": [(COMPLETIONS, ask(COMPLETIONS, 1), ())],
    "responses, messages": answers(),
    "responses, messages: thinking under way": answers(thinks=True),
    "responses, messages: tools": answers(tools=[{"name": "f", "input_schema": {}, "parameters": {}}]),
    "responses, messages: a call under way, built-in tools": answers(
        tools=[{"type": "web_search_20250305", "name": "web_search"}]
    ),
    "responses, messages: structured output, `logprobs`": [
        *answers(output_config={"format": {"type": "json_schema"}}, text={"format": {"type": "json_object"}}),
        (RESPONSES, answer_of(RESPONSES) | {"include": ["message.output_text.logprobs"]}, ()),
    ],
    "whole answers (not streamed)": both(stream=False),
    "`n`, several prompts": [*both(n=2), (COMPLETIONS, ask(COMPLETIONS, 1, prompt=["a", "b"]), ())],
    "stop strings": both(stop=["STOP"]),
    "`seed`, `temperature` above 0": both(seed=5, temperature=0.7),
    "`frequency_penalty`": both(frequency_penalty=0.5),
    "`presence_penalty`": both(presence_penalty=0.5),
    "`logprobs`": both(logprobs=1),
    "`echo`": [(COMPLETIONS, ask(COMPLETIONS, 1, echo=True), ())],
    "usage": both(stream_options={"include_usage": True}),
    "token ids as the prompt": [(COMPLETIONS, ask(COMPLETIONS, 1, prompt=[1, 2, 3]), ())],
    "tools": chat({"content": "So"}, **TOOL),
    "tools, a call under way": chat({"content": "So"}, CALL, **TOOL),
    "`response_format`, `structured_outputs`, `guided_…`": [
        *both(response_format={"type": "json_object"}),
        *both(structured_outputs={"choice": ["a"]}),
        *both(guided_json={"type": "object"}),
    ],
    "thinking under way": chat({"reasoning_content": "hm"}, **THINKING),
    "thinking under way, of a model without `thinking_end`": chat({"reasoning_content": "hm"}),
    "text after the thinking": chat({"reasoning_content": "hm"}, {"content": "So"}),
    "images and sounds in the prompt": chat({"content": "So"}, messages=[{"role": "user", "content": [IMAGE]}]),
    "LoRA adapters": both(model="sql"),
    "members of the body that the gateway doesn't know": both(other=1),
}
"""Requests of each row of the table in docs/resume.md."""


def table() -> dict[str, tuple[str, str]]:
    """The cells of each row."""
    document = (Path(__file__).resolve().parents[3] / "docs/resume.md").read_text(encoding="utf-8")
    lines = document.partition("| | `exact` (vLLM) | `text` |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: (row[1], row[2]) for row in rows}


def test_the_table_of_the_documentation_has_what_can_be_continued() -> None:
    documented = table()
    assert documented.keys() == ROWS.keys()
    for row, (exact, text) in documented.items():
        forms: tuple[tuple[Setting, str, str], ...] = (
            ("exact", "vllm", exact),
            ("text", "vllm" if "vLLM," in text else "sglang", text),
        )
        for setting, kind, cell in forms:
            found = {found_form(api, body, setting, kind, *deltas) for api, body, deltas in ROWS[row]}
            continued = not cell.startswith(("no", "restarted"))
            assert "no" not in found if continued else found == {"no"}, (row, setting, cell)


@pytest.mark.parametrize(
    ("api", "kind", "setting", "more", "words"),
    [
        (CHAT, "vllm", "exact", {}, "exact"),
        (CHAT, "sglang", "exact", {}, "no"),
        (COMPLETIONS, "opaque", "text", {}, "text"),
        (CHAT, "opaque", "text", {}, "no"),
        (CHAT, "vllm", "text", TOOL, "text"),
        (CHAT, "vllm", "exact", TOOL | {"tool_choice": "none"}, "exact"),
        (CHAT, "vllm", "exact", {"response_format": {"type": "text"}}, "exact"),
        (CHAT, "vllm", "exact", {"presence_penalty": 0}, "exact"),
        (COMPLETIONS, "vllm", "text", {"echo": True}, "text"),
        (COMPLETIONS, "vllm", "text", {"suffix": "x"}, "no"),
        (CHAT, "vllm", "off", {}, "no"),
    ],
)
async def test_what_can_be_continued(api: Api, kind: str, setting: Setting, more: Body, words: str) -> None:
    assert found_form(api, ask(api, 1, **more), setting, kind) == words


@pytest.mark.parametrize(
    ("delta", "reason"),
    [
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}, "tools"),
        ({"reasoning_content": "hm"}, "thinking"),
        ({"refusal": "no"}, "tools"),
    ],
)
@pytest.mark.parametrize("setting", ["exact", "text"])
async def test_a_call_or_a_thought_under_way_is_not_continued(delta: Body, reason: str, setting: Setting) -> None:
    resuming = resumed(CHAT, ask(CHAT, 1), setting, "vllm")
    assert resuming is not None
    resuming.kept.keep_events(chat_event(delta))
    with pytest.raises(CantContinue) as unable:
        resuming.break_off()
    assert unable.value.reason == reason


async def test_an_answer_continues_after_its_thoughts() -> None:
    resuming = resumed(CHAT, ask(CHAT, 1), "exact", "vllm")
    assert resuming is not None
    for delta in ({"reasoning": "hm"}, {"content": "So"}):
        resuming.kept.keep_events(chat_event(delta))
    resuming.break_off()
    question = resuming.next_question(0, None)
    assert question is not None
    assert question.body["prompt"] == [1, 5, 5]
