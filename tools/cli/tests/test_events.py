"""The lines of `watch` and `explain` about events."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from io import StringIO
from unittest.mock import AsyncMock, Mock

import nats.errors
import nats.js.errors
import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from pointsman_cli import bus
from pointsman_cli.app import app
from pointsman_cli.explain.events import EventSelection
from pointsman_cli.explain.explain import explain, story
from pointsman_cli.words import CommandError
from pointsman_contracts.cascade import AnswerConfidence
from pointsman_contracts.journey import StageReport, Target
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseReviewed, UnusedAnswer, Usage
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_core.request_events import by_edge, read
from pointsman_testing.builders import scheduled


def reviewed(*stages: StageReport) -> ResponseReviewed:
    return ResponseReviewed(request_id="r-1", source="edge-1", sequence=1, at_ms=0, pool="p", stages=stages)


KEPT = StageReport(stage="semantic-cache", instance="cache-1", took_ms=1.25, note="kept")
SHADOW = StageReport(stage="guard", instance="g-1", outcome="shadow_blocked", took_ms=2, note="house: blocked secret.x")


def test_explain_shows_what_stages_after_the_last_byte_said_and_why() -> None:
    found = read("response.reviewed.v1", reviewed(SHADOW, KEPT).encode())
    assert found is not None
    console = Console(width=120, file=StringIO(), record=True)
    console.print(*story(found), sep="\n")
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[0].endswith("r-1 after the last byte guard shadow_blocked semantic-cache passed")
    assert lines[1:] == [
        "guard shadow_blocked 2.0 ms house: blocked secret.x g-1",
        "semantic-cache passed 1.2 ms kept cache-1",
    ]


@pytest.mark.requirement("CASCADE-1")
def test_explain_tells_every_answer_of_a_cascade_and_the_whole_cost() -> None:
    judged = AnswerConfidence(verdict="unconfident", why="mean log probability -1.05, least -0.5")
    unused = UnusedAnswer(
        target=Target(model="small", pool="p"), worker="w-1", served="small", judged=judged,
        usage=Usage(prompt_tokens=5, completion_tokens=3), cost_nanos=8_000, took_ms=31.0,
    )  # fmt: skip
    end = ResponseCompleted(
        request_id="r-1", source="edge-1", sequence=1, at_ms=0, pool="p", worker="w-2", status=200, outcome="ok",
        served="large", usage=Usage(prompt_tokens=5, completion_tokens=2), cost_nanos=70_000,
        confidence=AnswerConfidence(verdict="last"), unused=(unused,),
    )  # fmt: skip
    console = Console(width=160, file=StringIO(), record=True)
    console.print(*story(end), sep="\n")
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[-3:] == [
        "not given small unconfident: mean log probability -1.05, least -0.5 31 ms 5 + 3 tokens · $0.000008",
        "given large last 5 + 2 tokens · $0.00007",
        "charged $0.000078 in all",
    ]
    left = AttemptFailed(
        request_id="r-1", source="edge-1", sequence=1, at_ms=0, pool="p", worker="w-1", outcome="escalated"
    )
    console = Console(width=160, file=StringIO(), record=True)
    console.print(*story(left), sep="\n")
    assert "w-1 escalated the cascade's next model is asked" in " ".join(console.export_text().split())


def test_explain_keeps_the_requests_of_two_edges_apart_that_have_one_id() -> None:
    first, second = reviewed(KEPT), replace(reviewed(SHADOW), source="edge-2")
    decided = scheduled(edge="edge-2")
    assert by_edge([decided, first, second]) == {"edge-2": [decided, second], "edge-1": [first]}


def test_explain_says_how_long_a_request_waited_before_it_was_decided() -> None:
    waited = scheduled(queued_ms=2345.6, decided_us=40)
    assert "waited 2,345.6 ms · decided in 40 µs" in facts(waited)
    assert "waited" not in facts(replace(waited, queued_ms=0.0))
    slept = replace(waited, no_endpoint_ms=2000.0, no_endpoint="asleep")
    assert "waited 2,345.6 ms · 2,000.0 ms of it for an endpoint: all engines slept · decided in" in facts(slept)
    assert "for an endpoint: the pool had no engine" in facts(replace(slept, no_endpoint="none"))


def facts(event: RequestScheduled) -> str:
    console = Console(width=240, file=StringIO(), record=True)
    console.print(*story(event), sep="\n")
    return next(line for line in console.export_text().splitlines() if "prompt tokens" in line)


def test_watch_shows_them_when_there_is_something_to_see() -> None:
    everything = EventSelection()
    assert not everything.matches_event(reviewed(KEPT))
    assert everything.matches_event(reviewed(SHADOW, KEPT))
    assert not EventSelection(outcome="ok").matches_event(reviewed(SHADOW))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (nats.errors.TimeoutError(), r"the stream PM_EVENTS can't be read: no answer\."),
        (nats.js.errors.ServerError(description="no memory"), "PM_EVENTS can't be read: .*no memory"),
        (nats.js.errors.NotFoundError(), r"the stream PM_EVENTS doesn't exist\."),
    ],
)
@pytest.mark.parametrize("late", [False, True])
async def test_explain_says_in_words_why_the_stream_is_not_read(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str, *, late: bool
) -> None:
    subscription = Mock(consumer_info=AsyncMock(side_effect=error))
    js = Mock(pull_subscribe=AsyncMock(side_effect=None if late else error, return_value=subscription))
    client = Mock(request=AsyncMock(side_effect=nats.errors.NoRespondersError), jetstream=Mock(return_value=js))

    @asynccontextmanager
    async def connected(*_: object) -> AsyncGenerator[Mock]:
        yield client

    monkeypatch.setattr(bus, "connected", connected)
    with pytest.raises(CommandError, match=words):
        await explain(None, "r-1", timedelta(minutes=5), Console(quiet=True), as_json=False)


@pytest.mark.parametrize("minutes", ["nan", "-1", "1e30", "inf"])
def test_explain_refuses_to_look_back_by_what_is_no_time(minutes: str) -> None:
    ran = CliRunner().invoke(app, ["explain", "r-1", "--since", minutes])
    assert ran.exit_code == 2
    assert "--since" in ran.output
