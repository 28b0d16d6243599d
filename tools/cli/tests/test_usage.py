"""The questions of `pointsman usage`, and its tables of sums and outcomes."""

import pytest
from rich.console import Console, RenderableType

from pointsman_cli.explain.outcome import cached, outcome
from pointsman_cli.explain.usage import notes, query, table, total
from pointsman_cli.words import CommandError
from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import StageReport, Target
from pointsman_contracts.response import Attempt, LegReport, ResponseCompleted, Seam, Usage
from pointsman_contracts.usage import LostSum, UsageQuery, UsageSum, UsageSums

ROWS = (
    UsageSum(
        tenant="acme", day="2026-03-01", requests=2, prompt_tokens=3000, completion_tokens=5, cost_nanos=500_000_004_000
    ),
    UsageSum(tenant="", day="2026-03-01", requests=1, failed=1, prompt_tokens=7, estimated=1, unpriced=1),
)


def printed(*parts: RenderableType) -> str:
    console = Console(width=200, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(*parts, sep="\n")
    return capture.get()


def test_a_question_is_checked_before_anybody_is_asked() -> None:
    assert query("day, model", "2026-03-01", None, "acme", None) == UsageQuery(
        by=("day", "model"), since="2026-03-01", tenant="acme"
    )
    for by, since in (("colour", None), ("day", "yesterday"), ("day", "2026-13-01")):
        with pytest.raises(CommandError):
            query(by, since, None, None, None)


def test_rows_are_shown_with_their_total_and_what_a_reader_must_know() -> None:
    lost = (
        LostSum(type="request.scheduled.v1", count=7, from_ms=0, to_ms=0),
        LostSum(type="response.completed.v1", count=1, from_ms=1_772_366_400_000, to_ms=1_772_366_409_000),
    )
    sums = UsageSums(recorder="r", rows=ROWS, behind=12, unpriced_models=("llama",), lost=lost)
    text = printed(table(sums, ("tenant", "day")))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0][:3] == ["day", "tenant", "requests"]
    assert lines[1] == ["2026-03-01", "acme", "2", "0", "3,000", "5", "$500.000004"]
    assert lines[2][:3] == ["2026-03-01", "-", "1"]
    assert lines[3] == ["total", "3", "1", "3,007", "5", "$500.000004"]
    assert total(ROWS).requests == 3
    words = " ".join(notes(sums))
    for part in (
        "the tokens of 1 request.",
        "the model of 1 request: llama.",
        "12 events behind",
        "the ends of 1 request between 2026-03-01 12:00:00 UTC",
    ):
        assert part in words


def test_the_end_of_a_request_tells_attempts_stages_usage_and_cost() -> None:
    event = ResponseCompleted(
        request_id="r",
        source="edge",
        sequence=1,
        at_ms=0,
        pool="p",
        target=Target(model="m", pool="p"),
        api="chat.completions",
        stream=True,
        status=200,
        outcome="ok",
        legs=(LegReport(leg="prefill", worker="engine-0", outcome="lost", status=200, began_ms=1.6, took_ms=20),),
        attempts=(
            Attempt(worker="engine-1", outcome="failed", status=500, took_ms=3),
            Attempt(worker="engine-2", outcome="answered", status=200, took_ms=90),
        ),
        decided_ms=1.5,
        ttft_ms=40,
        duration_ms=95,
        usage=Usage(prompt_tokens=1200, cached_tokens=1000, completion_tokens=30, reasoning_tokens=10, estimated=True),
        seams=(
            Seam(
                worker="engine-2",
                next_worker="engine-3",
                form="exact",
                at_ms=60,
                gap_ms=5,
                kept_tokens=7,
                computed_again=1207,
            ),
        ),
        unresumed="no_engine",
        served="llama",
        cost_nanos=12_500_000,
        identity=Identity(tenant="acme", subject="ci"),
        stages=(StageReport(stage="guard", instance="guard-1", outcome="replaced", took_ms=2.25, note="an address"),),
    )
    text = printed(*outcome(event))
    for part in (
        "client acme / ci",
        "streamed",
        "decided after 1.5 ms · first byte after 40.0 ms · ended after 95 ms",
        "1,200 prompt tokens (1,000 cached), 30 completion tokens (10 of them reasoning) of llama, estimated · $0.0125",
        "prefill  engine-0  lost",
        "attempt 1  engine-1  failed    500",
        "after 60 ms    engine-2 broke off  engine-3 continued after 5 ms  7 tokens kept (exact)  1,207 computed again",
        "not continued  no_engine",
        "guard  replaced  2.2 ms  an address  guard-1",
    ):
        assert part in text, text


@pytest.mark.parametrize(
    ("used", "told"), [(Usage(cached_unknown=True), "unknown"), (Usage(cached_tokens=1024), "1,024")]
)
def test_cached_tokens_that_no_engine_reported_are_unknown_and_not_zero(used: Usage, told: str) -> None:
    assert cached(used) == told
