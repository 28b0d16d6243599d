"""A cascade: a cheap model answers first, and a larger one where that answer isn't confident."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from pointsman_contracts.cascade import ConfidenceRule
from pointsman_contracts.journey import AnswerUse, CascadeStep, PreprocessRequest, Stage, Target
from pointsman_contracts.reply import Answer, ChosenEndpoint, Decision, Rejection
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, UnusedAnswer
from pointsman_contracts.response_stage import Verdict
from pointsman_testing import builders, eventually
from pointsman_testing.fake_stages import EdgeUnderTest, StartEdge
from pointsman_testing.raw_http import RawResponse, post, raw_connection, raw_request
from pointsman_testing.scripted_engine import Received, Script, ScriptedEngine

CHAT = "/v1/chat/completions"
SMALL, LARGE = Target(model="small", pool="llama-8b"), Target(model="large", pool="llama-8b")
RULE = ConfidenceRule(mean_logprob=-0.5)
CONFIG: dict[str, object] = {
    "pools": {"llama-8b": {"models": ["small", "large"]}},
    "models": {
        "small": {"pool": "llama-8b", "cost": {"input": 1, "output": 1}},
        "large": {"pool": "llama-8b", "cost": {"input": 10, "output": 10}},
    },
}


def document(text: str, logprobs: Sequence[float] | None = None, *, reason: str = "stop", tokens: int = 2) -> bytes:
    told = None if logprobs is None else {"content": [{"token": "t", "logprob": each} for each in logprobs]}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason, "logprobs": told}
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    return json.dumps({"object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}).encode()


def events_of(text: str, logprob: float | None = -0.1) -> list[bytes]:
    found: list[bytes] = []
    for piece in text.split():
        told = None if logprob is None else {"content": [{"token": piece, "logprob": logprob}]}
        choice = {"index": 0, "delta": {"content": f"{piece} "}, "finish_reason": None, "logprobs": told}
        found.append(b"data: " + json.dumps({"choices": [choice], "model": "m"}).encode() + b"\n\n")
    last: dict[str, object] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "model": "m"}
    return [*found, b"data: " + json.dumps(last).encode() + b"\n\n", b"data: [DONE]\n\n"]


def answers(body: bytes, status: int = 200) -> Script:
    async def script(request: Received) -> None:
        await request.answer(body, status=status)

    return script


def streams(text: str, logprob: float | None = -0.1) -> Script:
    async def script(request: Received) -> None:
        await request.begin_stream()
        for event in events_of(text, logprob):
            await request.chunk(event)
        await request.chunk(b"")

    return script


KEEPS = Stage(service="semantic-cache", answer=AnswerUse(mode="after", content="body"))
LARGE_SAYS = answers(document("large says"))


class World:
    """An edge whose requests are for a cascade of two models, each with an engine of its own."""

    def __init__(self, edge: EdgeUnderTest, small: ScriptedEngine, large: ScriptedEngine) -> None:
        self.edge, self.small, self.large = edge, small, large
        self.rule = RULE
        self.hold_tokens: int | None = None
        self.within_ms: int | None = None
        self.check: Stage | None = None
        self.has_larger = True
        self.cached: bytes | None = None
        """The larger model's answer, where a cache has it."""
        self.caches = False
        """Whether a cache stands behind the choice of the model."""
        edge.stages.reply = self._decide

    def _decide(self, request: PreprocessRequest) -> Decision | Rejection | Answer:
        if request.escalated:
            if not self.has_larger:
                return Rejection(
                    request_id=request.request_id, stage="scheduler", status=503, type="server_error", message="full"
                )
            if self.cached is not None:
                return Answer(
                    request_id=request.request_id, stage="semantic-cache", body=self.cached, target=LARGE, model="auto"
                )
            return self._decision(request, LARGE, "worker-2", self.large, None)
        step = CascadeStep(
            model="small", rest=("large",), confident=self.rule, check=self.check,
            hold_tokens=self.hold_tokens, within_ms=self.within_ms,
        )  # fmt: skip
        return self._decision(request, SMALL, "worker-1", self.small, step)

    def _decision(
        self, request: PreprocessRequest, target: Target, worker: str, engine: ScriptedEngine, step: CascadeStep | None
    ) -> Decision:
        endpoint = ChosenEndpoint(worker=worker, url=engine.url)
        return builders.decision(
            request.request_id,
            attempt=request.attempt,
            model="auto",
            target=target,
            endpoints=(endpoint,),
            cascade=step,
            response=(KEEPS.noted(f"as {target.model}'s"),) if self.caches else (),
        )

    async def ask(self, **fields: object) -> RawResponse:
        body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}], **fields}
        return await raw_request(self.edge.url, post(CHAT, json.dumps(body).encode()))

    def asked_small(self) -> dict[str, object]:
        return json.loads(self.small.received[-1].body)

    async def completed(self) -> ResponseCompleted:
        await eventually(lambda: self.edge.events.of(ResponseCompleted))
        (end,) = self.edge.events.of(ResponseCompleted)
        return end


@asynccontextmanager
async def started(start_edge: StartEdge, small: Script, large: Script = LARGE_SAYS) -> AsyncGenerator[World]:
    async with ScriptedEngine(small) as cheap, ScriptedEngine(large) as dear:
        yield World(await start_edge(config=CONFIG), cheap, dear)


def text_of(response: RawResponse) -> str:
    return json.loads(response.body)["choices"][0]["message"]["content"]


def said(response: RawResponse) -> str:
    events = [line.removeprefix(b"data: ") for line in response.body.split(b"\n\n") if line]
    chunks = [json.loads(event) for event in events if event != b"[DONE]"]
    assert all(chunk["choices"][0].get("logprobs") is None for chunk in chunks)
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks).strip()


def unused_of(end: ResponseCompleted) -> list[UnusedAnswer]:
    return list(end.unused or ())


def facts(end: ResponseCompleted) -> tuple[str, str | None, str | None]:
    return end.outcome, end.served, None if end.confidence is None else end.confidence.verdict


async def test_a_confident_answer_is_given_without_what_the_client_did_not_ask_for(start_edge: StartEdge) -> None:
    async with started(start_edge, answers(document("small says", [-0.1, -0.2]))) as world:
        response = await world.ask()
        assert world.asked_small()["logprobs"] is True
        assert world.large.received == []
    assert (response.status, text_of(response)) == (200, "small says")
    assert json.loads(response.body)["choices"][0]["logprobs"] is None
    assert response.header("x-pointsman-cascade") == "confident"
    end = await world.completed()
    assert (facts(end), end.unused, end.cost_nanos) == (("ok", "small", "confident"), None, 7_000)
    assert end.confidence is not None
    assert end.confidence.mean_logprob == -0.15


@pytest.mark.requirement("CASCADE-1")
async def test_an_answer_that_is_not_confident_is_charged_and_the_larger_model_answers(start_edge: StartEdge) -> None:
    async with started(start_edge, answers(document("small says", [-0.1, -2.0], tokens=3))) as world:
        response = await world.ask()
        question, _, _ = world.edge.stages.asked[-1]
        assert (question.attempt, question.escalated) == (2, ("small",))
        assert "logprobs" not in json.loads(world.large.received[-1].body)
    assert (response.status, text_of(response)) == (200, "large says")
    assert response.header("x-pointsman-cascade") == "last"
    assert json.loads(response.body)["usage"]["completion_tokens"] == 2
    end = await world.completed()
    assert (facts(end), end.cost_nanos) == (("ok", "large", "last"), 70_000)
    (unused,) = unused_of(end)
    assert (unused.served, unused.worker, unused.cost_nanos) == ("small", "worker-1", 8_000)
    assert (unused.judged.verdict, unused.judged.why) == (
        "unconfident",
        "mean log probability -1.05, least -0.5",
    )
    assert unused.usage is not None
    assert unused.usage.completion_tokens == 3
    assert [each.outcome for each in end.attempts] == ["escalated", "answered"]
    (left,) = world.edge.events.of(AttemptFailed)
    assert (left.worker, left.outcome, left.pool) == ("worker-1", "escalated", "llama-8b")
    assert world.edge.metric("pointsman_edge_cascade_answers_total") == 2


@pytest.mark.requirement("CASCADE-2")
@pytest.mark.parametrize("unknown", ["escalate", "accept"])
async def test_an_answer_without_log_probabilities_is_of_unknown_confidence(
    start_edge: StartEdge, unknown: str
) -> None:
    async with started(start_edge, answers(document("small says"))) as world:
        world.rule = ConfidenceRule(mean_logprob=-0.5, unknown=unknown)
        response = await world.ask()
    given, mark = ("large says", "last") if unknown == "escalate" else ("small says", "unknown")
    assert (text_of(response), response.header("x-pointsman-cascade")) == (given, mark)
    end = await world.completed()
    judged = unused_of(end)[0].judged if unknown == "escalate" else end.confidence
    assert judged is not None
    assert (judged.verdict, judged.why) == ("unknown", "no log probabilities came")


@pytest.mark.parametrize(
    "larger", [answers(b'{"error":{"message":"no"}}', 500), answers(b'{"error":{"message":"no"}}', 400)]
)
async def test_when_the_larger_model_fails_the_first_answer_is_given_and_marked(
    start_edge: StartEdge, larger: Script
) -> None:
    async with started(start_edge, answers(document("small says", [-2.0])), larger) as world:
        response = await world.ask()
    assert (response.status, text_of(response)) == (200, "small says")
    assert response.header("x-pointsman-cascade") == "unconfident"
    end = await world.completed()
    assert (facts(end), end.status) == (("ok", "small", "unconfident"), 200)
    assert end.confidence is not None
    assert "given because the larger model failed" in end.confidence.why
    assert [(each.worker, each.judged.verdict) for each in unused_of(end)] == [("worker-2", "failed")]
    assert end.attempts[0].outcome == "answered"


@pytest.mark.requirement("CASCADE-2")
async def test_when_no_larger_model_can_be_asked_the_first_answer_is_given(start_edge: StartEdge) -> None:
    async with started(start_edge, answers(document("small says", [-2.0]))) as world:
        world.has_larger = False
        response = await world.ask()
    assert (text_of(response), response.header("x-pointsman-cascade")) == ("small says", "unconfident")
    end = await world.completed()
    assert (facts(end), end.unused) == (("ok", "small", "unconfident"), None)


@pytest.mark.requirement("CASCADE-1")
@pytest.mark.parametrize("logprob", [-0.1, -2.0])
async def test_a_cache_keeps_the_answer_that_the_client_got_under_its_own_model(
    start_edge: StartEdge, logprob: float
) -> None:
    async with started(start_edge, answers(document("small says", [logprob]))) as world:
        world.caches = True
        text = text_of(await world.ask())
        memos = ["as small's"] if text == "small says" else ["as small's", "as large's"]
        await eventually(lambda: len(world.edge.reviewers.asked) == len(memos))
    reviews = world.edge.reviewers.asked
    assert [each.memo for each in reviews] == memos
    for each in reviews:
        assert each.target == (SMALL if text == "small says" else LARGE)
        assert each.body is not None
        assert (text.encode() in each.body, each.makeshift) == (True, False)


@pytest.mark.requirement("CASCADE-2")
async def test_an_answer_that_was_given_for_want_of_a_better_one_is_not_to_be_kept(start_edge: StartEdge) -> None:
    async with started(start_edge, answers(document("small says", [-2.0])), answers(b"{}", 500)) as world:
        world.caches = True
        assert text_of(await world.ask()) == "small says"
        await eventually(lambda: len(world.edge.reviewers.asked) == 2)
    assert [(each.target, each.makeshift) for each in world.edge.reviewers.asked] == [(SMALL, True), (SMALL, True)]


@pytest.mark.requirement("CASCADE-1")
async def test_the_larger_models_answer_comes_from_a_cache_where_it_has_it(start_edge: StartEdge) -> None:
    async with started(start_edge, answers(document("small says", [-2.0]))) as world:
        world.cached = document("large said")
        response = await world.ask()
        assert world.large.received == []
    assert (text_of(response), response.header("x-pointsman-cascade")) == ("large said", "last")
    end = await world.completed()
    assert (end.outcome, end.answered_by, end.cost_nanos or 0) == ("ok", "semantic-cache", 0)
    assert [(each.served, each.cost_nanos) for each in unused_of(end)] == [("small", 7_000)]


async def test_a_client_that_leaves_while_a_stream_is_held_ends_the_engines_work(start_edge: StartEdge) -> None:
    async def script(request: Received) -> None:
        await request.begin_stream()
        for event in events_of("one two three")[:2]:
            await request.chunk(event)
        begun.set()
        await request.gone.wait()

    begun = asyncio.Event()
    async with started(start_edge, script) as world:
        task = asyncio.create_task(world.ask(stream=True))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])
        await eventually(lambda: world.small.received[0].gone.is_set())
        end = await world.completed()
        assert world.large.received == []
    assert (end.outcome, end.status, end.served, end.unused) == ("client_gone", 499, "small", None)
    assert end.usage is not None
    assert end.usage.estimated


async def hang(request: Received) -> None:
    await request.gone.wait()


async def test_a_model_that_fails_or_is_late_is_followed_by_the_larger_one(start_edge: StartEdge) -> None:
    failing = answers(b'{"error":{"message":"no"}}', 500)
    for script, within_ms, verdict in ((failing, None, "failed"), (hang, 50, "late")):
        async with started(start_edge, script) as world:
            world.within_ms = within_ms
            response = await world.ask()
        assert (response.status, text_of(response)) == (200, "large says")
        end = await world.completed()
        assert [each.judged.verdict for each in unused_of(end)] == [verdict]
        assert facts(end) == ("ok", "large", "last")


async def test_when_every_model_fails_the_client_gets_an_error(start_edge: StartEdge) -> None:
    failing = answers(b'{"error":{"message":"no"}}', 500)
    async with started(start_edge, failing, failing) as world:
        response = await world.ask()
    assert response.status == 500
    end = await world.completed()
    assert (end.status, end.usage) == (500, None)


async def test_a_request_that_is_wrong_is_asked_of_one_model(start_edge: StartEdge) -> None:
    wrong = b'{"error":{"message":"bad"}}'
    async with started(start_edge, answers(wrong, 400)) as world:
        response = await world.ask()
        assert world.large.received == []
    assert response.status == 400


@pytest.mark.requirement("CASCADE-3")
@pytest.mark.parametrize("logprob", [-0.1, -3.0])
async def test_a_stream_is_held_until_it_is_judged(start_edge: StartEdge, logprob: float) -> None:
    async with started(start_edge, streams("small says it", logprob), streams("large says it", None)) as world:
        response = await world.ask(stream=True)
    assert said(response) == ("small says it" if logprob == -0.1 else "large says it")
    assert response.header("content-type") == "text/event-stream; charset=utf-8"
    end = await world.completed()
    assert (end.stream, len(unused_of(end))) == (True, 0 if logprob == -0.1 else 1)


@pytest.mark.requirement("CASCADE-3")
async def test_a_stream_leaves_once_its_beginning_is_confident(start_edge: StartEdge) -> None:
    async def script(request: Received) -> None:
        await request.begin_stream()
        for event in events_of("one two three four")[:2]:
            await request.chunk(event)
        await goes_on.wait()
        for event in events_of("one two three four")[2:]:
            await request.chunk(event)
        await request.chunk(b"")

    goes_on = asyncio.Event()
    async with started(start_edge, script) as world:
        world.hold_tokens = 2
        body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        async with raw_connection(world.edge.url) as connection:
            await connection.send(post(CHAT, json.dumps(body).encode()))
            begun = await connection.reader.readuntil(b"two ")
            assert b"x-pointsman-cascade: confident" in begun
            goes_on.set()
            await connection.reader.readuntil(b"[DONE]")
        assert world.large.received == []
        end = await world.completed()
    assert (facts(end), end.unused) == (("ok", "small", "confident"), None)


async def test_a_stream_whose_beginning_is_not_confident_is_cut(start_edge: StartEdge) -> None:
    async def script(request: Received) -> None:
        await request.begin_stream()
        for event in events_of("one two three", -3.0)[:2]:
            await request.chunk(event)
        await request.gone.wait()

    async with started(start_edge, script, streams("large says", None)) as world:
        world.hold_tokens = 2
        response = await world.ask(stream=True)
        await eventually(lambda: world.small.received[0].gone.is_set())
    assert said(response) == "large says"
    (unused,) = unused_of(await world.completed())
    assert unused.usage is not None
    assert (unused.usage.estimated, unused.usage.completion_tokens) == (True, 2)


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_stage_checks_the_whole_answer(start_edge: StartEdge, blocks: bool) -> None:
    async with started(start_edge, answers(document("small says", [-0.1]))) as world:
        world.check = Stage(service="checker", answer=AnswerUse(mode="buffer", content="text"))
        action = "block" if blocks else "pass"
        world.edge.reviewers.say = lambda review: Verdict(request_id=review.request_id, action=action)
        response = await world.ask()
    assert text_of(response) == ("large says" if blocks else "small says")
    (review,) = world.edge.reviewers.asked
    assert [each.text for each in review.texts] == ["small says"]
    end = await world.completed()
    assert [each.judged.why for each in unused_of(end)] == (["checker objects"] if blocks else [])


async def test_a_client_that_leaves_meanwhile_pays_for_both(start_edge: StartEdge) -> None:
    async with started(start_edge, answers(document("small says", [-2.0])), hang) as world:
        task = asyncio.create_task(world.ask())
        await eventually(lambda: world.large.received)
        task.cancel()
        await asyncio.wait([task])
        await eventually(lambda: world.large.received[0].gone.is_set())
        end = await world.completed()
    assert (end.outcome, end.served, [each.served for each in unused_of(end)]) == ("client_gone", "large", ["small"])
