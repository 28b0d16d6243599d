"""What `watch` and `explain` make of events."""

from io import StringIO

from rich.console import Console

from pointsman_cli import events
from pointsman_cli.events import Selection
from pointsman_cli.explain import story
from pointsman_contracts.journey import StageReport, Target
from pointsman_contracts.response import ResponseReviewed
from pointsman_contracts.scheduling import RequestScheduled


def reviewed(*stages: StageReport) -> ResponseReviewed:
    return ResponseReviewed(request_id="r-1", source="edge-1", sequence=1, at_ms=0, pool="p", stages=stages)


KEPT = StageReport(stage="semantic-cache", instance="cache-1", took_ms=1.25, note="kept")
SHADOW = StageReport(stage="guard", instance="g-1", outcome="shadow_blocked", took_ms=2, note="house: blocked secret.x")


def test_explain_shows_what_stages_after_the_last_byte_said_and_why() -> None:
    read = events.read("response.reviewed.v1", reviewed(SHADOW, KEPT).encode())
    assert read is not None
    console = Console(width=120, file=StringIO(), record=True)
    console.print(*story(read), sep="\n")
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[0].endswith("r-1 after the last byte guard shadow_blocked semantic-cache passed")
    assert lines[1:] == [
        "guard shadow_blocked 2.0 ms house: blocked secret.x g-1",
        "semantic-cache passed 1.2 ms kept cache-1",
    ]


def test_explain_says_how_long_a_request_waited_before_it_was_decided() -> None:
    waited = RequestScheduled(
        request_id="r-1",
        source="scheduler-1",
        sequence=1,
        at_ms=0,
        edge="edge-1",
        pool="p",
        model="m",
        target=Target(model="m", pool="p"),
        profile="standard",
        primary="default",
        queued_ms=2345.6,
        runs=(),
        endpoints=(),
        reason="",
        decided_us=40,
        revision=1,
    )
    assert "waited 2,345.6 ms · decided in 40 µs" in facts(waited)
    assert "waited" not in facts(waited.model_copy(update={"queued_ms": 0.0}))


def facts(event: RequestScheduled) -> str:
    console = Console(width=240, file=StringIO(), record=True)
    console.print(*story(event), sep="\n")
    return next(line for line in console.export_text().splitlines() if "prompt tokens" in line)


def test_watch_shows_them_when_there_is_something_to_see() -> None:
    everything = Selection()
    assert not everything.wants(reviewed(KEPT))
    assert everything.wants(reviewed(SHADOW, KEPT))
    assert not Selection(outcome="ok").wants(reviewed(SHADOW))
