"""An engine that is asked for the rest of a stream isn't believed: whatever it sends, the client reads one answer."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_testing.continuing_engine import Body, ContinuingEngine
from pointsman_testing.cut_streams import FIRST, OTHER, CutStream, ask, expected, read

Events = list[Body | bytes]
"""Documents, or the very bytes of an event."""
TOLD: Final = {CHAT.name: {"logprobs": True, "top_logprobs": 2}, COMPLETIONS.name: {"logprobs": 2}}


@dataclass(frozen=True)
class UntrueEngine:
    """EngineInProcess as another engine does, and changes the events."""

    change: Callable[[Events], Events]
    engine: ContinuingEngine = OTHER

    def stream(self, path: str, body: Body) -> bytes:
        """The events of an answer."""
        documents: Events = [
            each if each == b"data: [DONE]\n\n" else json.loads(each[6:]) for each in self.engine.events(path, body)
        ]
        return b"".join(
            each if isinstance(each, bytes) else b"data: %b\n\n" % json.dumps(each).encode()
            for each in self.change(documents)
        )


def with_choice(number: int, change: Callable[[Body], object]) -> Callable[[Events], Events]:
    """Change the choice of one event, or of all from it on where `number` is negative."""

    def changed(events: Events) -> Events:
        for place, each in enumerate(events):
            if isinstance(each, dict) and each["choices"] and (place == number or place >= -number > 0):
                change(each["choices"][0])
        return events

    return changed


def put(number: int, **members: Any) -> Callable[[Events], Events]:
    return with_choice(number, lambda choice: choice.update(members))


def events_of(change: Callable[[Events], Events | None]) -> Callable[[Events], Events]:
    def changed(events: Events) -> Events:
        found = change(events)
        return events if found is None else found

    return changed


USAGE: Final[Body] = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9999, "total_tokens": 10000}}
MANY: Final = [300] * 50

LEFT: Final[Mapping[str, Callable[[Events], Events]]] = {
    "a finish reason that is an object": put(3, finish_reason={"type": "stop"}),
    "a finish reason that is a list": put(2, finish_reason=["stop"]),
    "the answer is aborted": put(4, finish_reason="abort"),
    "an error of its own": put(4, finish_reason="error"),
    "every text in another choice": put(-1, index=1),
    "another prompt": put(0, prompt_token_ids=[1, 2, 3]),
    "no token ids from some event on": put(-3, token_ids=None),
    "text without a token": put(-2, token_ids=[]),
    "token ids that are true and false": put(2, token_ids=[True, False]),
    "token ids that are negative": put(2, token_ids=[-5]),
    "token ids that are texts": put(2, token_ids=["5"]),
    "more tokens than it was asked for": put(2, token_ids=MANY),
    "a text that is a number": put(2, text=5),
    "no text": with_choice(2, lambda choice: choice.pop("text")),
    "the events of a chat": with_choice(-1, lambda choice: choice.update(delta={"content": choice.pop("text")})),
    "an error in the stream": lambda events: [*events[:3], {"error": {"message": "x", "code": 500}}, *events[3:]],
    "an error that is a text": lambda events: [*events[:3], {"error": "CUDA error"}],
    "the end of the stream before that of the answer": lambda events: [*events[:3], b"data: [DONE]\n\n", *events[3:]],
    "no finish reason": lambda events: [
        *(each for each in events if isinstance(each, dict) and not is_last(each)), b"data: [DONE]\n\n",
    ],
    "nothing": lambda events: events[:0],
    "a document": lambda events: [json.dumps(events[0]).encode()],
    "a page": lambda _: [b"<html>Service Unavailable</html>\n\n"],
    "events that aren't JSON": lambda events: [*events[:2], b"data: {broken\n\n"],
    "an event without an end": lambda events: [*events[:2], b"data: {"],
    "probabilities of other tokens": with_choice(2, lambda choice: told(choice)["tokens"].append("x")),
    "probabilities that are texts": with_choice(2, lambda choice: told(choice).update(token_logprobs=["x"])),
    "tokens that are numbers": with_choice(2, lambda choice: told(choice).update(tokens=[1])),
    "probabilities that are a list": put(2, logprobs=[1, 2]),
    "no probabilities": put(2, logprobs=None),
    "top probabilities that are a number": with_choice(2, lambda choice: told(choice).update(top_logprobs=3)),
}  # fmt: skip
"""By which an engine is left for the next one."""
PASSED_OVER: Final[Mapping[str, Callable[[Events], Events]]] = {
    "usage twice, and wrong": lambda events: [USAGE, *events[:-1], USAGE, USAGE, events[-1]],
    "usage in every event": lambda events: [each | USAGE_ONLY if isinstance(each, dict) else each for each in events],
    "a second choice": lambda events: [second(each) if isinstance(each, dict) else each for each in events],
    "everything twice": lambda events: [*events, *events],
    "an error behind the end": lambda events: [*events[:-1], {"error": {"message": "x", "code": 500}}, events[-1]],
    "comments, empty events and other documents": lambda events: [
        b": hello\n\n", b"\n\n", b"data:\n\n", b"data: []\n\n", b"data: 5\n\n", {"choices": None}, {"choices": {}},
        {"choices": [None, 5, []]}, *events,
    ],
    "other ends of line": lambda events: [
        each if isinstance(each, bytes) else b"data: %b\r\n\r\n" % json.dumps(each).encode() for each in events
    ],
    "a byte order mark": lambda events: [b"\xef\xbb\xbf: x\n\n", *events],
    "no usage and no mark at the end": lambda events: [
        each for each in events if isinstance(each, dict) and each["choices"]
    ],
    "members of a chat besides": with_choice(-1, lambda choice: choice.update(delta={"tool_calls": [{}], "role": "x"})),
    "another id, model and time": lambda events: [
        each | {"id": 7, "model": None, "created": "x"} if isinstance(each, dict) else each for each in events
    ],
}  # fmt: skip
"""Of which a client sees nothing."""
USAGE_ONLY: Final[Body] = {"usage": USAGE["usage"]}


def told(choice: Body) -> Body:
    return choice["logprobs"]


def is_last(document: Body) -> bool:
    return any(choice.get("finish_reason") for choice in document["choices"])


def second(document: Body) -> Body:
    return document | {"choices": [{"index": 1, "text": "no", "token_ids": [1]}, *document["choices"]]}


def body_of(api: Api, number: int, **more: Any) -> Body:
    options = {"include_usage": True}
    return ask(api, number, max_tokens=40, ignore_eos=True, stream_options=options, **TOLD[api.name], **more)


def middle(api: Api, body: Body, change: Callable[[Events], Events], *, ends: bool = True) -> CutStream:
    """A run whose first rest comes from an engine that changes it, and the next one from another."""
    return CutStream(api, body, others=(UntrueEngine(change), OTHER), ends=ends)


def at_middle(api: Api, body: Body, number: int) -> int:
    return len(FIRST.stream(api.path, body | {"return_token_ids": True})) // 3 + 17 * number


@pytest.mark.parametrize("name", LEFT)
async def test_an_engine_that_sends_no_rest_is_left(name: str) -> None:
    for number in range(4):
        api = (CHAT, COMPLETIONS)[number % 2]
        body = body_of(api, number)
        run = middle(api, body, LEFT[name])
        got = await run.cut([at_middle(api, body, number)], random.Random(number))
        assert read(got) == expected(api, body)
        assert len(run.failures) == 1


@pytest.mark.parametrize("name", PASSED_OVER)
async def test_a_client_sees_the_rest_alone(name: str) -> None:
    for number in range(4):
        api = (CHAT, COMPLETIONS)[number % 2]
        body = body_of(api, number)
        run = middle(api, body, PASSED_OVER[name])
        got = await run.cut([at_middle(api, body, number)], random.Random(number))
        assert read(got) == expected(api, body)
        assert not run.failures


JUNK: Final[tuple[Any, ...]] = (None, True, -1, 2**70, 1.5, "", "x", "\ud800", [], [None], [{}], {}, {"a": [1]}, [[1]])


def damaged(events: Events, dice: random.Random) -> Events:
    """Members of some events are others."""
    for _ in range(dice.choice((1, 1, 3))):
        place = dice.randrange(len(events))
        document = events[place]
        if isinstance(document, bytes):
            events[place] = dice.choice((b"", b"data: ]\n\n", b"\xff\xfe\n\n", b"data: {}\n\n"))
            continue
        holder: Body = document
        while True:
            members: list[Any] = []
            for value in holder.values():
                members += value if isinstance(value, list) else [value]
            inner: list[Body] = [each for each in members if isinstance(each, dict) and each]
            if not inner or dice.random() < 0.3:
                break
            holder = dice.choice(inner)
        name = dice.choice([*holder, "error", "delta", "index", "text"])
        if dice.random() < 0.2:
            holder.pop(name, None)
        else:
            holder[name] = dice.choice(JUNK)
    return events


def test_no_damage_breaks_more_than_the_engine_that_sends_it() -> None:
    """The answer ends once. Where a text was damaged that the client has, no engine may go on from it."""

    async def all_hold() -> None:
        unfinished = 0
        for number in range(120):
            dice = random.Random(number)
            api = (CHAT, COMPLETIONS)[number % 2]
            body = body_of(api, number)
            run = middle(api, body, lambda events, dice=dice: damaged(events, dice), ends=False)
            data = await run.cut([at_middle(api, body, number % 9)], random.Random(number))
            if not data.endswith(b"data: [DONE]\n\n"):
                unfinished += 1
                assert len(run.failures) > 1
                data += b"data: [DONE]\n\n"
            got = read(data)
            (choice,) = got["choices"].values()
            assert len(choice["ends"]) == len(got["usages"]) == (run.failures[1:] == []), number
        assert unfinished <= 6

    asyncio.run(all_hold())


async def test_engines_that_die_after_a_few_events_each_bring_the_answer_further() -> None:
    for number in range(6):
        api = (CHAT, COMPLETIONS)[number % 2]
        body = body_of(api, number)
        run = CutStream(api, body, others=(UntrueEngine(lambda events: events[:3]), OTHER))
        got = await run.cut([3000 + number], random.Random(number))
        assert read(got) == expected(api, body)
        assert len(run.failures) == 1


async def test_an_engine_that_goes_on_otherwise_writes_the_rest_in_its_own_way() -> None:
    """Sums of numbers differ between batches: greedy sampling doesn't bring the same tokens everywhere. Only where the
    client's last tokens end within a character, no point is left from which another engine can go on."""
    left = 0
    for number in range(40):
        api = (CHAT, COMPLETIONS)[number % 2]
        body = ask(api, number, max_tokens=60, ignore_eos=True, stream_options={"include_usage": True})
        whole = FIRST.stream(api.path, body | {"return_token_ids": True})
        at = len(whole) // 2 + number
        run = CutStream(api, body, others=(ContinuingEngine(salt="other", together=2),), ends=False)
        data = await run.cut([at], random.Random(number))
        before = read(whole[: whole.rfind(b"\n\n", 0, at) + 2] + b"data: [DONE]\n\n")["choices"][0]["text"]
        if run.failures:
            left += 1
            assert read(data + b"data: [DONE]\n\n")["choices"][0]["text"] == before
            continue
        got = read(data)
        (choice,) = got["choices"].values()
        assert choice["text"].startswith(before), number
        assert [reason for reason, _ in choice["ends"]] == ["length"]
        assert got["usages"][0]["completion_tokens"] == 60
    assert left <= 5
