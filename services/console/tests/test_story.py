"""One request as a page tells it."""

from typing import Any

from msgspec.structs import replace

from pointsman_console.domain import story
from pointsman_contracts.cascade import AnswerConfidence
from pointsman_contracts.journey import StageReport, Target
from pointsman_contracts.message import fields_of
from pointsman_contracts.response import (
    LegReport,
    RequestRejected,
    ResponseCompleted,
    ResponseStarted,
    Seam,
    UnusedAnswer,
)
from pointsman_contracts.scheduling import CandidateColumns, LegsForecast, PreludeForecast, ProfileRun, RequestScheduled
from pointsman_core import why
from pointsman_core.request_events import Event
from pointsman_testing.builders import scheduled


def told(*events: Event) -> dict[str, Any]:
    return story.told("edge-1", events)


COLUMNS = CandidateColumns(
    workers=("a", "b", "c"),
    ages_ms=(10.0, 20.0, -1.0),
    running=(1, 2, 0),
    waiting=(0, 3, 0),
    kv_usage=(0.1, 0.9, 0.0),
    matched_tokens=(512, 0, 0),
    scores={"queue": (1.0, 0.25, None)},
    totals=(2.0, 0.5, None),
    filtered={"c": "healthy: draining"},
)
RUN = ProfileRun(profile="default", chosen=("a", "b"), weights={"queue": 2.0}, candidates=COLUMNS)


def decision(**changes: object) -> RequestScheduled:
    took = {"preprocessor/limit": 0.1, "preprocessor": 0.5, "profile-picker": 0.2, "scheduler": 9.0}
    trail = tuple(StageReport(stage=name, instance="i", took_ms=ms) for name, ms in took.items())
    return scheduled(
        runs=(RUN,), primary="default", endpoints=("a", "b"), trail=trail, queued_ms=4.0, decided_us=300.0, **changes
    )


def test_what_an_engine_fetches_before_the_prompt_is_shown_with_each_candidates_share() -> None:
    columns = replace(COLUMNS, fetched_tokens=(1024, 0, 64))
    forecast = PreludeForecast(fetched={"host": 1024}, fetch_ms=3.5)
    found = told(replace(decision(), runs=(replace(RUN, candidates=columns),), prelude=forecast))
    [shown] = found["decisions"]
    assert shown["prelude"] == "before the prompt: a fetches 1,024 tokens from host in 3.5 ms, as predicted"
    assert [(each["worker"], each["fetched"]) for each in shown["runs"][0]["candidates"]] == [
        ("a", 1024), ("b", 0), ("c", 64),
    ]  # fmt: skip
    [plain] = told(decision())["decisions"]
    assert (plain["prelude"], {each["fetched"] for each in plain["runs"][0]["candidates"]}) == ("", {0})


def completed() -> ResponseCompleted:
    return ResponseCompleted(
        request_id="request-1", source="edge-1", sequence=1, at_ms=9, pool="p", worker="a", status=200, outcome="ok",
        decided_ms=6.0, ttft_ms=40.0, duration_ms=100.0,
    )  # fmt: skip


def test_every_candidate_has_its_scores_and_the_words_of_explain() -> None:
    found = told(decision())
    [shown] = found["decisions"]
    [run] = shown["runs"]
    words = {each["worker"]: each["words"] for each in run["candidates"]}
    assert words == {verdict.worker: verdict.words for verdict in why.verdicts(RUN)}
    assert words["c"] == "removed by healthy: draining"


def test_the_timeline_runs_without_gaps_from_the_first_stage_to_the_end() -> None:
    started = ResponseStarted(
        request_id="request-1", source="edge-1", sequence=1, at_ms=8, pool="p", worker="a", ttft_ms=33.0
    )
    found = told(decision(), started, completed())
    spans = found["timeline"]
    shown = [(span["name"], span["from_ms"], span["to_ms"]) for span in spans]
    assert shown == [
        ("preprocessor", 0.0, 0.5),
        ("profile-picker", 0.5, 0.7),
        ("queue", 0.7, 4.7),
        ("scheduler", 4.7, 5.0),
        ("bus and edge", 5.0, 6.0),
        ("until the first token", 6.0, 40.0),
        ("answer", 40.0, 100.0),
    ]
    assert found["over"] is True


def test_the_timeline_has_the_prompts_leg_and_the_end_its_report() -> None:
    leg = LegReport(leg="prefill", worker="p", outcome="answered", status=200, began_ms=7.0, took_ms=20.0)
    found = told(decision(), replace(completed(), legs=(leg,)))
    spans = [(span["name"], span["from_ms"], span["to_ms"]) for span in found["timeline"]]
    assert spans[-3:] == [
        ("prefill on p", 6.0, 27.0),
        ("until the first token", 27.0, 40.0),
        ("answer", 40.0, 100.0),
    ]
    assert found["end"]["legs"] == [fields_of(leg)]


def test_the_end_has_the_answers_of_a_cascade_that_the_client_did_not_get() -> None:
    judged = AnswerConfidence(verdict="late", why="no whole answer within 2 s")
    unused = UnusedAnswer(target=Target(model="small", pool="p"), worker="w", judged=judged, cost_nanos=8_000)
    end = replace(completed(), confidence=AnswerConfidence(verdict="last"), unused=(unused,))
    found = told(decision(), end)["end"]
    assert found["confidence"]["verdict"] == "last"
    (shown,) = found["unused"]
    assert (shown["model"], shown["judged"]["why"], shown["usage"]) == ("small", judged.why, None)
    assert told(completed())["end"]["unused"] == []


def test_the_timeline_has_the_seams_of_a_stream_and_the_end_their_report() -> None:
    seams = (
        Seam(worker="a", next_worker="b", form="exact", at_ms=60.0, gap_ms=5.0, kept_tokens=7, computed_again=90),
        Seam(worker="b", next_worker="c", form="exact", at_ms=80.0, gap_ms=4.0, kept_tokens=9, computed_again=92),
    )
    found = told(decision(), replace(completed(), seams=seams))
    spans = [(span["name"], span["from_ms"], span["to_ms"]) for span in found["timeline"]]
    assert spans[-6:] == [
        ("until the first token", 6.0, 40.0),
        ("answer of a", 40.0, 60.0),
        ("seam: b continues", 60.0, 65.0),
        ("answer of b", 65.0, 80.0),
        ("seam: c continues", 80.0, 84.0),
        ("answer", 84.0, 100.0),
    ]
    assert found["end"]["seams"] == [fields_of(seam) for seam in seams]


def test_a_rejected_request_names_the_stage_that_rejected_it_and_the_reason() -> None:
    rejected = RequestRejected(
        request_id="r", source="edge-1", sequence=1, at_ms=1, stage="preprocessor", status=429, reason="over the limit"
    )
    found = told(rejected)
    assert found["given"] == {
        "stage": "preprocessor", "status": 429, "rejected": True, "reason": "over the limit", "trail": [],
    }  # fmt: skip
    assert found["decisions"] == []


def test_where_the_prompt_is_computed_is_told_with_its_prediction() -> None:
    forecast = LegsForecast(
        worker="p", alone=9000.0, apart=4000.0, alone_ttft_ms=170.0, apart_ttft_ms=205.0, prefill_ms=165.0,
        handover_ms=31.0,
    )  # fmt: skip
    told_words = told(decision(forecast=forecast))["decisions"][0]["prompt"]
    assert told_words == (
        "prompt computed by p: predicted first token after 170 ms on one engine, 205 ms on two (165 ms at p, handed "
        "over in 31 ms); cost 9,000 against 4,000"
    )
    assert told(decision())["decisions"][0]["prompt"] == ""
    alone = why.legs(decision(forecast=replace(forecast, apart=9001.0)))
    assert alone.startswith("prompt computed where the answer is")
