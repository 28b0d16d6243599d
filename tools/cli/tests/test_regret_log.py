"""`pointsman regret --from` judges a flight log as a recorder judges the events of the same traffic."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from pointsman_cli.app import app
from pointsman_contracts.journey import StageReport, Target
from pointsman_contracts.message import Message
from pointsman_contracts.regret import RequestsJudged
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted, Usage
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_recorder.domain.judge import Judge
from pointsman_recorder.domain.regret_sums import regret_rows
from pointsman_scheduler.domain.outcome import Postponed, Scheduled
from pointsman_scheduler.scheduled_event import ScheduledEvent, describe_decision
from pointsman_testing import builders
from pointsman_testing.recorded_traffic import RecordedBench

SETTINGS: Final[dict[str, object]] = {
    "handler": {"use": "shadow", "primary": "default"},
    "profiles": {"default": {}, "by-chance": {"scorers": [], "picker": {"use": "random"}}},
}
Sums = dict[tuple[str | None, ...], Counter[str]]


def regret(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["regret", *map(str, arguments)])


class Run:
    """Simulated traffic whose inputs are recorded, and whose events a recorder's judge reads."""

    def __init__(self, folder: Path) -> None:
        self.bench = RecordedBench(folder, SETTINGS)
        self.bench.join("w0", "w1", "w2")
        self.peer = RecordedBench(folder.with_name("peer"), SETTINGS, scheduler="scheduler-2")
        """Another scheduler, which decides nothing and hears of every response a millisecond later."""
        self.peer.join("w0", "w1", "w2")
        self.judge = Judge()
        self.sums: Sums = {}
        self.unjudged: Counter[str] = Counter()

    @property
    def at_ms(self) -> int:
        """The wall clock of the log's header began at 1 ns when the bench's clock stood at 1000 s."""
        return round(1e-6 + (self.bench.now - 1000.0) * 1000.0)

    def take(self, kind: type[Message], body: bytes) -> None:
        self.judge.judge_body(kind.address.type_id, body)
        if self.judge.is_due:
            self.ask()

    def ask(self) -> None:
        for verdicts in self.judge.take_verdicts():
            event = RequestsJudged.decode(verdicts.make_message("recorder-1", 1, "recorder").encode())
            self.unjudged.update(event.unjudged)
            for row in regret_rows(event):
                self.sums.setdefault((row.pool, row.hour, row.profile, row.reason), Counter()).update(
                    requests=row.requests, judged=row.judged, regret_us=row.regret_us, cost_us=row.cost_us
                )

    def decide(self, request: ScheduleRequest, seed: int) -> str:
        pool, now = self.bench.pool, self.bench.now
        outcome, bound = pool.decide(request, now, seed, self.bench.policy), None
        if isinstance(outcome, Postponed):
            bound = pool.binder.leave_now(request.key, now * 1000.0)
            assert bound is not None
            outcome = pool.decide(bound.request, now, seed, self.bench.policy)
        assert isinstance(outcome, Scheduled)
        target = Target(model="llama", pool="llama")
        journey = builders.journey("scheduler", target=target, request_id=request.request_id, edge=request.edge)
        facts = replace(journey.request, prompt_tokens=request.facts.prompt_tokens, stream=request.facts.stream)
        journey = replace(journey, request=facts)
        report = StageReport(stage="scheduler", instance="scheduler-1")
        told = ScheduledEvent(
            journey, target, self.bench.policy, 1, outcome, 0.0, 0.0, report, None, self.at_ms, bound
        )  # fmt: skip
        self.take(RequestScheduled, describe_decision(told, "scheduler-1", 1, 256).encode())
        return outcome.endpoints[0].name

    def start(self, request: ScheduleRequest, worker: str) -> None:
        self.bench.pool.books.started(request.key, worker, 40.0, self.bench.now)
        self.peer.pool.books.started(request.key, worker, 40.0, self.bench.now + 0.001)
        event = ResponseStarted(
            request_id=request.request_id, source=request.edge, sequence=1, at_ms=self.at_ms, pool="llama",
            worker=worker, ttft_ms=40.0,
        )  # fmt: skip
        self.take(ResponseStarted, event.encode())

    def end(self, request: ScheduleRequest, worker: str, tokens: int, *, ok: bool = True) -> None:
        for books, now in ((self.bench.pool.books, self.bench.now), (self.peer.pool.books, self.bench.now + 0.001)):
            books.completed(request.key, now, ok, tokens, 200.0, worker, self.at_ms)
        event = ResponseCompleted(
            request_id=request.request_id, source=request.edge, sequence=1, at_ms=self.at_ms, pool="llama", status=200,
            outcome="ok" if ok else "client_gone", usage=Usage(prompt_tokens=1, completion_tokens=tokens),
        )  # fmt: skip
        self.take(ResponseCompleted, event.encode())

    def fail(self, request: ScheduleRequest, worker: str, following: str) -> None:
        event = AttemptFailed(
            request_id=request.request_id, source=request.edge, sequence=1, at_ms=self.at_ms, pool="llama",
            worker=worker, outcome="refused", next_worker=following,
        )  # fmt: skip
        self.bench.pool.books.failed(event, self.bench.now)
        self.peer.pool.books.failed(event, self.bench.now + 0.001)
        self.take(AttemptFailed, event.encode())

    def serve(self, number: int) -> None:
        """A request that is served beside a long one, every third time."""
        bench = self.bench
        long = bench.prompt(1000 + number, 400) if number % 3 == 0 else None
        there = self.decide(long, number) if long is not None else ""
        bench.now += 0.005
        request = bench.prompt(number % 5, 12, 4, stream=number % 7 != 0)
        worker = self.decide(request, number)
        bench.now += 0.04
        if number % 11 == 5:
            self.fail(request, worker, "w0")
            worker = "w0"
        self.start(request, worker)
        bench.now += 0.16
        self.end(request, worker, 20 + number % 3, ok=number % 13 != 7)
        bench.now += 0.3
        if long is not None:
            self.start(long, there)
            bench.now += 0.1
            self.end(long, there, 12)
        bench.now += 0.5


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two segments, whose second one begins with a snapshot."""
    made = Run(tmp_path_factory.mktemp("logs") / "flight")
    for number in range(160):
        made.serve(number)
        if number == 90:
            made.bench.rotate()
    made.bench.end()
    made.peer.end()
    made.ask()
    return made


@pytest.mark.requirement("REGRET-3")
def test_the_sums_of_a_log_are_those_of_the_events_of_the_same_traffic(run: Run) -> None:
    result = regret("--from", run.bench.directory, "--by", "pool,hour,profile,reason", "--json")
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    found = {tuple(row.pop(name) for name in ("pool", "hour", "profile", "reason")): Counter[str](row) for row in rows}
    assert found == run.sums
    by_profile = Counter[str | None]()
    for (_, _, profile, _), row in run.sums.items():
        by_profile[profile] += row["regret_us"]
    assert 0 < by_profile["default"] < by_profile["by-chance"]


def test_a_response_that_several_schedulers_heard_of_counts_once(run: Run) -> None:
    one = regret("--from", run.bench.directory, "--json")
    both = regret("--from", run.bench.directory, "--from", run.peer.directory, "--json")
    assert both.exit_code == 0, both.output
    assert both.stdout == one.stdout != ""
    assert regret("--from", run.peer.directory, "--json").stdout == ""


def test_requests_that_are_not_judged_are_counted_with_the_reason(run: Run) -> None:
    output = " ".join(regret("--from", run.bench.directory).output.split())
    for why, words in (("moved", "whose engine failed"), ("unanswered", "without a complete answer")):
        assert run.unjudged[why] > 1
        assert f"Not judged: {run.unjudged[why]} requests {words}." in output


def test_filters_choose_rows_of_a_log_as_of_a_recorder(run: Run) -> None:
    [row] = csv.DictReader(
        regret("--from", run.bench.directory, "--by", "profile", "--profile", "by-chance", "--csv").stdout.splitlines()
    )
    expected = sum(row["regret_us"] for key, row in run.sums.items() if key[2] == "by-chance")
    assert (row["profile"], int(row["regret_us"])) == ("by-chance", expected)
    for nothing in (("--pool", "other"), ("--since", "1970-01-02"), ("--until", "1969-12-31")):
        assert regret("--from", run.bench.directory, "--json", *nothing).stdout == ""
    assert regret("--from", run.bench.directory, "--json", "--until", "1970-01-01").stdout != ""


def test_a_changed_log_is_refused_with_its_place(run: Run, tmp_path: Path) -> None:
    content = bytearray(min(run.bench.directory.rglob("*.flight")).read_bytes())
    content[len(content) // 2] ^= 4
    (tmp_path / "changed.flight").write_bytes(content)
    result = regret("--from", tmp_path)
    assert result.exit_code != 0
    assert "changed.flight, byte" in str(result.exception)
