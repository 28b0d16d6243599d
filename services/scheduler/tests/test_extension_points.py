"""In which order the framework calls the extension points for one request."""

from collections.abc import Collection, Mapping, Sequence

import pytest

from pointsman_contracts.journey import HeaderEdit
from pointsman_core.config import SchedulingPolicy
from pointsman_plugins.plugin import Params, Reference
from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import (
    Decider,
    Filter,
    Picker,
    PreRequest,
    Producer,
    ProfileHandler,
    Removal,
    ResponseObserver,
    Scorer,
)
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run, Selection
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.plugins import registries
from pointsman_testing.scheduler_bench import Bench

calls: list[str] = []


class TracedProducer(Producer):
    type_name = "producer"

    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        calls.append(f"Producer.produce {self.name}")


class TracedFilter(Filter):
    type_name = "filter"

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        calls.append(f"  Filter.filter {self.name}: {candidates.size} candidates")
        return Removal(candidates.indices() != 0, "first")


class TracedScorer(Scorer):
    type_name = "scorer"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        calls.append(f"  Scorer.score {self.name}: {candidates.size} candidates")
        return candidates.kv_usage


class TracedPicker(Picker):
    type_name = "picker"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        calls.append(f"  Picker.pick {self.name}")
        return (len(totals) - 1, 0)


class TracedDecider(Decider):
    type_name = "decider"

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        calls.append(f"Decider.wanted {self.name}")
        return True


class HandlerParams(Params):
    decider: Reference


class TracedHandler(ProfileHandler[HandlerParams]):
    type_name = "handler"

    def setup(self) -> None:
        self.decider = self.refer(self.params.decider, Decider)

    def pick(
        self, request: ScheduleRequest, profiles: Collection[str], results: Mapping[str, Run | None]
    ) -> Sequence[str]:
        calls.append(f"ProfileHandler.pick, finished: {', '.join(results) or 'none'}")
        if not results:
            return ("decode",)
        return ("prefill",) if "prefill" not in results and self.decider.wanted(request, results["decode"]) else ()

    def process_results(self, request: ScheduleRequest, results: Mapping[str, Run | None]) -> Selection | None:
        calls.append("ProfileHandler.process_results")
        decode, prefill = results["decode"], results["prefill"]
        assert decode is not None
        assert prefill is not None
        return Selection(decode, {"prefill": prefill}, "prefill")


class TracedPreRequest(PreRequest):
    type_name = "pre-request"

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        calls.append(f"PreRequest.prepare {self.name}")
        return ()


class TracedObserver(ResponseObserver):
    type_name = "observer"

    def chosen(self, hold: Hold, now: float) -> None:
        calls.append(f"ResponseObserver.chosen {hold.change.leg or 'answer'} at {hold.worker.name}")

    def started(self, hold: Hold, now: float, ttft_ms: float) -> None:
        calls.append(f"ResponseObserver.started {hold.change.leg or 'answer'} at {hold.worker.name}")

    def failed(self, hold: Hold, now: float) -> None:
        calls.append(f"ResponseObserver.failed {hold.change.leg or 'answer'} at {hold.worker.name}")

    def completed(self, hold: Hold, now: float, output_tokens: int | None, duration_ms: float | None) -> None:
        calls.append(f"ResponseObserver.completed {hold.change.leg or 'answer'} at {hold.worker.name}")

    def gone(self, hold: Hold, now: float) -> None:
        calls.append(f"ResponseObserver.gone {hold.change.leg or 'answer'} at {hold.worker.name}")


ORDER = """\
Producer.produce one
Producer.produce two
ProfileHandler.pick, finished: none
  Filter.filter first: 4 candidates
  Filter.filter second: 3 candidates
  Scorer.score load: 3 candidates
  Scorer.score cache: 3 candidates
  Picker.pick picker
ProfileHandler.pick, finished: decode
Decider.wanted decider
  Scorer.score scorer: 4 candidates
  Picker.pick picker
ProfileHandler.process_results
PreRequest.prepare pre-request
ResponseObserver.chosen answer at w3
ResponseObserver.chosen prefill at w3
-- the first endpoint refuses
ResponseObserver.failed answer at w3
ResponseObserver.gone answer at w3
ResponseObserver.chosen answer at w1
-- the first byte comes
ResponseObserver.gone prefill at w3
ResponseObserver.started answer at w1
-- the last byte went
ResponseObserver.completed answer at w1
ResponseObserver.gone answer at w1
"""


@pytest.mark.requirement("S2-1", "S2-7", "S2-18", "S2-26", "S2-31")
def test_the_extension_points_are_called_in_this_order() -> None:
    traced = registries()._replace(
        producers=Registry(Producer, (TracedProducer,)),
        deciders=Registry(Decider, (TracedDecider,)),
        handlers=Registry(ProfileHandler, (TracedHandler,)),
        filters=Registry(Filter, (TracedFilter,)),
        scorers=Registry(Scorer, (TracedScorer,)),
        pickers=Registry(Picker, (TracedPicker,)),
        pre_requests=Registry(PreRequest, (TracedPreRequest,)),
        observers=Registry(ResponseObserver, (TracedObserver,)),
    )
    settings: dict[str, object] = {
        "handler": {"use": "handler", "decider": "decider"},
        "deciders": ["decider"],
        "producers": [{"use": "producer", "name": "one"}, {"use": "producer", "name": "two"}],
        "pre-request": ["pre-request"],
        "observers": ["observer"],
        "profiles": {
            "decode": {
                "filters": [{"use": "filter", "name": "first"}, {"use": "filter", "name": "second"}],
                "scorers": [{"use": "scorer", "name": "load"}, {"use": "scorer", "name": "cache", "weight": 2}],
                "picker": "picker",
            },
            "prefill": {"filters": [], "scorers": ["scorer"], "picker": "picker"},
        },
    }
    calls.clear()
    bench = Bench()
    bench.join("w0", "w1", "w2", "w3")
    policy = compile_policy("traced", SchedulingPolicy.model_validate(settings), traced)
    bench.pool.use([policy])
    request = bench.request()
    outcome = bench.pool.decide(request, bench.now, 1, policy)
    assert isinstance(outcome, Scheduled)
    calls.append("-- the first endpoint refuses")
    bench.fail(request.request_id, "w3", "w1")
    calls.append("-- the first byte comes")
    bench.pool.books.started(request.key, "w1", 5.0, bench.now)
    calls.append("-- the last byte went")
    bench.pool.books.completed(request.key, bench.now, ok=True)
    order = "\n".join(calls) + "\n"
    print(order)  # noqa: T201 - with `pytest -s` this is the documentation
    assert order == ORDER
