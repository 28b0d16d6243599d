"""Decisions are judged once their requests have ended, from the events alone."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.regret import JudgedChoice, JudgedRequest, RegretQuery, RequestsJudged
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted, Usage
from pointsman_contracts.scheduling import CandidateColumns, ProfileRun, RequestScheduled
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.store import EventStore, StoreBounds
from pointsman_recorder.domain.entry import JUDGED, entry
from pointsman_recorder.domain.judge import AT_ONCE, Judge, Verdicts
from pointsman_recorder.domain.reasons import RunColumns, reason
from pointsman_recorder.domain.regret_sums import regret_rows
from pointsman_testing.builders import scheduled

BOUNDS = StoreBounds(event_days=1e4, event_bytes=2**30, sum_days=2e4)
EPOCH_MS = 1_780_000_000_000
WEIGHTS = {"least-delay": 12.0, "queue": 1.0}


def profile_run(chosen: str, profile: str = "default", *, filtered: dict[str, str] | None = None) -> ProfileRun:
    """A run over two engines in which `chosen` has the better scores."""
    scores = tuple(1.0 if worker == chosen else 0.0 for worker in ("a", "b"))
    columns = CandidateColumns(
        workers=("a", "b"), ages_ms=(5.0, 5.0), running=(0, 0), waiting=(0, 0), kv_usage=(0.0, 0.0),
        matched_tokens=(0, 0), scores=dict.fromkeys(WEIGHTS, scores), totals=tuple(13.0 * score for score in scores),
        filtered=filtered or {},
    )  # fmt: skip
    return ProfileRun(profile=profile, chosen=(chosen,), weights=WEIGHTS, candidates=columns)


class Gateway:
    """Writes the events of requests, and has them judged."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.now = EPOCH_MS

    def decide(self, name: str, worker: str, *more: ProfileRun, **changes: object) -> None:
        fields: dict[str, object] = {
            "request_id": name, "edge": "e", "at_ms": self.now, "prompt_tokens": 1000, "endpoints": (worker,),
            "runs": (profile_run(worker), *more),
        }  # fmt: skip
        self.take(scheduled(**(fields | changes)))

    def start(self, name: str, worker: str) -> None:
        self.take(
            ResponseStarted(
                request_id=name, source="e", sequence=1, at_ms=self.now, pool="p", worker=worker, ttft_ms=1.0
            )
        )

    def end(self, name: str, outcome: str = "ok", tokens: int = 20) -> None:
        self.take(
            ResponseCompleted(
                request_id=name, source="e", sequence=1, at_ms=self.now, pool="p", status=200, outcome=outcome,
                usage=Usage(prompt_tokens=1000, completion_tokens=tokens),
            )
        )  # fmt: skip

    def fail(self, name: str, worker: str, following: str | None) -> None:
        self.take(
            AttemptFailed(
                request_id=name, source="e", sequence=1, at_ms=self.now, pool="p", worker=worker, outcome="refused",
                next_worker=following,
            )
        )  # fmt: skip

    def take(self, event: RequestScheduled | ResponseStarted | ResponseCompleted | AttemptFailed) -> None:
        self.judge.judge_body(event.address.type_id, event.encode())

    def serve(self, name: str, worker: str, *more: ProfileRun, **changes: object) -> None:
        """One request from its decision to its end, alone."""
        self.decide(name, worker, *more, **changes)
        self.now += 40
        self.start(name, worker)
        self.now += 160
        self.end(name)
        self.now += 800

    def warm_up(self) -> None:
        """Until predictions are trusted."""
        for number in range(60):
            self.serve(f"warm-{number}", "ab"[number % 2])
        self.judge.take_verdicts()

    def verdicts(self) -> list[RequestsJudged]:
        """As readers get them."""
        return [read(each) for each in self.judge.take_verdicts()]


def read(verdicts: Verdicts) -> RequestsJudged:
    return RequestsJudged.decode(verdicts.make_message("recorder-1", 1, "recorder").encode())


@pytest.fixture
def gateway() -> Gateway:
    made = Gateway()
    made.warm_up()
    return made


def test_the_best_choice_has_no_regret_and_no_reason(gateway: Gateway) -> None:
    gateway.serve("r", "a")
    [event] = gateway.verdicts()
    [judged] = event.requests
    [choice] = judged.choices
    assert (choice.worker, choice.reason, judged.output_tokens) == ("a", "", 20)
    assert choice.regret_us == 0
    assert set(judged.costs_us) == {"a", "b"}


def test_a_worse_choice_names_the_scorer_that_made_it(gateway: Gateway) -> None:
    gateway.decide("long", "a", prompt_tokens=30_000)
    gateway.now += 5
    gateway.serve("r", "a")
    [event] = gateway.verdicts()
    [judged] = event.requests
    [choice] = judged.choices
    chosen, best = judged.candidates
    assert (choice.reason, chosen.worker, best.worker) == ("scorer:least-delay", "a", "b")
    assert choice.regret_us == chosen.cost_us - best.cost_us == judged.costs_us["a"] - judged.costs_us["b"] > 0


def test_a_shadow_is_judged_beside_the_choice_that_was_used(gateway: Gateway) -> None:
    gateway.decide("long", "a", prompt_tokens=30_000)
    gateway.now += 5
    gateway.serve("r", "b", profile_run("a", "shadow"))
    [event] = gateway.verdicts()
    used, shadow = event.requests[0].choices
    assert (used.profile, used.regret_us) == ("default", 0)
    assert (shadow.profile, shadow.reason) == ("shadow", "scorer:least-delay")
    assert shadow.regret_us > 0


def test_the_cost_of_a_filter_is_counted_apart(gateway: Gateway) -> None:
    gateway.decide("long", "a", prompt_tokens=30_000)
    gateway.now += 5
    run = profile_run("a", filtered={"b": "subset: the client named others"})
    gateway.serve("r", "a", runs=(run,))
    [event] = gateway.verdicts()
    [choice] = event.requests[0].choices
    assert (choice.regret_us, choice.reason, choice.filter) == (0, "", "subset")
    assert choice.filtered_us == event.requests[0].costs_us["a"] - event.requests[0].costs_us["b"]


def test_a_request_without_a_complete_answer_is_counted(gateway: Gateway) -> None:
    gateway.decide("r", "a")
    gateway.end("r", "client_gone")
    [event] = gateway.verdicts()
    assert (event.requests, event.unjudged) == ((), {"unanswered": 1})


def test_a_request_whose_engine_failed_is_counted(gateway: Gateway) -> None:
    gateway.decide("r", "a")
    gateway.fail("r", "a", "b")
    gateway.start("r", "b")
    gateway.end("r")
    [event] = gateway.verdicts()
    assert (event.requests, event.unjudged) == ((), {"moved": 1})


def test_a_request_whose_work_several_engines_share_is_counted_and_not_judged(gateway: Gateway) -> None:
    gateway.serve("r", "a", legs={"prefill": "b"})
    [event] = gateway.verdicts()
    assert (event.requests, event.unjudged) == ((), {"split": 1})


def test_before_the_model_is_trusted_requests_are_counted() -> None:
    fresh = Gateway()
    fresh.serve("r", "a")
    [event] = fresh.verdicts()
    assert event.unjudged == {"model": 1}


def test_a_request_whose_decision_was_missed_is_counted(gateway: Gateway) -> None:
    gateway.end("stranger")
    [event] = gateway.verdicts()
    assert event.unjudged == {"unseen": 1}


def test_a_request_that_is_sent_again_to_its_worker_is_judged_once(gateway: Gateway) -> None:
    gateway.decide("r", "a")
    gateway.serve("r", "a")
    [event] = gateway.verdicts()
    assert len(event.requests) == 1


def test_many_requests_are_published_in_messages_that_the_bus_takes(gateway: Gateway) -> None:
    for number in range(AT_ONCE + 3):
        gateway.serve(f"r-{number}", "ab"[number % 2])
    events = gateway.verdicts()
    assert [len(event.requests) for event in events] == [AT_ONCE, 3]


def columns(scores: dict[str, tuple[float, float]]) -> RunColumns:
    totals = [sum(WEIGHTS[name] * pair[row] for name, pair in scores.items()) for row in (0, 1)]
    return RunColumns("default", "a", WEIGHTS, scores, totals, {})


@pytest.mark.parametrize(
    ("run", "bound", "expected"),
    [
        (columns({"least-delay": (1.0, 0.2), "queue": (0.0, 1.0)}), False, "scorer:least-delay"),
        (columns({"least-delay": (1.0, 1.0), "queue": (1.0, 0.0)}), False, "scorer:queue"),
        (columns({"least-delay": (1.0, 1.0), "queue": (1.0, 1.0)}), False, "tie"),
        (columns({"least-delay": (0.0, 1.0), "queue": (1.0, 1.0)}), True, "late-binding"),
        (columns({"least-delay": (0.0, 1.0), "queue": (1.0, 1.0)}), False, "picker"),
        (RunColumns("default", "a", {}, {}, (), {}), False, "picker"),
    ],
)
def test_the_reason_is_what_put_the_chosen_before_the_best(run: RunColumns, bound: bool, expected: str) -> None:
    assert reason(run, 0, 1, bound=bound) == expected


CHOICES = st.builds(
    JudgedChoice,
    profile=st.sampled_from(["default", "shadow"]),
    worker=st.just("a"),
    cost_us=st.integers(0, 10**9),
    regret_us=st.integers(0, 10**9),
    reason=st.sampled_from(["", "scorer:queue", "tie"]),
    filter=st.sampled_from(["", "subset"]),
    filtered_us=st.integers(1, 10**9),
)
REQUESTS = st.builds(
    JudgedRequest,
    request_id=st.just("r"),
    edge=st.just("e"),
    at_ms=st.integers(EPOCH_MS, EPOCH_MS + 10**8),
    prompt_tokens=st.just(1),
    output_tokens=st.just(1),
    choices=st.lists(CHOICES, max_size=3).map(tuple),
)


@given(st.lists(st.lists(REQUESTS, max_size=5), max_size=5))
def test_rows_of_events_are_sums_of_their_choices(batches: list[list[JudgedRequest]]) -> None:
    found: Counter[tuple[str | None, ...]] = Counter()
    expected: Counter[tuple[str | None, ...]] = Counter()
    for batch in batches:
        event = RequestsJudged(
            source="s", sequence=1, at_ms=1, judge="j", pool="p", rates=(), others=0, batch_tokens=0,
            first_token_weight=16, requests=tuple(batch),
        )  # fmt: skip
        for row in regret_rows(event):
            found[row.hour, row.profile, row.reason] += row.regret_us
        for request in batch:
            hour = datetime.fromtimestamp(request.at_ms / 1000, UTC).strftime("%Y-%m-%dT%H")
            for choice in request.choices:
                expected[hour, choice.profile, choice.reason] += choice.regret_us
                if choice.filter:
                    expected[hour, choice.profile, f"filter:{choice.filter}"] += choice.filtered_us
    assert found == expected


async def test_sums_agree_with_the_events_and_a_request_has_its_judgement(gateway: Gateway, tmp_path: Path) -> None:
    store = EventStore(Database(tmp_path), BOUNDS)
    for number in range(40):
        if number == 20:
            gateway.decide("long", "a", prompt_tokens=30_000)
        gateway.serve(f"r-{number}", "a")
    bodies = [
        each.make_message("recorder-1", place, "recorder").encode()
        for place, each in enumerate(gateway.judge.take_verdicts())
    ]
    end = ResponseCompleted(
        request_id="r-7", source="e", sequence=1, at_ms=EPOCH_MS, pool="p", status=200, outcome="ok"
    )
    entries = [entry(JUDGED, f"j:{place}", body, lambda: 0) for place, body in enumerate(bodies)]
    entries.append(entry(ResponseCompleted.address.type_id, "e:1", end.encode(), lambda: 0))
    known = [each for each in entries if each is not None]
    await store.keep_events(known)
    await store.keep_events(known)  # delivered again
    regret = requests = 0
    for body in bodies:
        for request in orjson.loads(body)["requests"]:
            requests += 1
            regret += request["choices"][0]["regret_us"]
    [row] = (await store.sum_regret(RegretQuery(by=()), "recorder")).rows
    assert (row.requests, row.regret_us) == (requests, regret)
    assert row.regret_us > 0
    [one, other] = (await store.sum_regret(RegretQuery(by=("reason",), pool="p"), "recorder")).rows
    assert (one.reason, other.reason) == ("", "scorer:least-delay")
    assert (await store.sum_regret(RegretQuery(since="2030-01-01"), "recorder")).rows == []
    day = datetime.fromtimestamp(EPOCH_MS / 1000, UTC).date().isoformat()
    assert (await store.sum_regret(RegretQuery(by=(), since=day, until=day), "recorder")).rows == [row]
    assert (await store.sum_regret(RegretQuery(by=()), "another recorder")).rows == []
    with pytest.raises(ValueError, match="rows have pool, hour, profile, reason; not tenant"):
        await store.sum_regret(RegretQuery(by=("tenant",)), "recorder")
    events, _ = await store.read_story("r-7")
    judged = [RequestsJudged.decode(event.body) for event in events if event.type == JUDGED]
    assert [[request.request_id for request in event.requests] for event in judged] == [["r-7"]]
    await store.close()
