"""How many of each a policy has, and which of its profiles run."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pytest

from pointsman_core.config import ConfigError, SchedulingPolicy, load
from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.arrays import Scores
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Picker, ProfileHandler
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run, Selection
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.policies import PolicyBook
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.plugins import registries
from pointsman_scheduler.plugins.pickers.ranking import MaxScore
from pointsman_testing.scheduler_bench import Bench


@pytest.mark.requirement("S2-6", "S2-27")
@pytest.mark.parametrize("key", ["picker", "handler"])
@pytest.mark.parametrize("several", [["max-score", "random"], []])
def test_a_profile_has_one_picker_and_a_policy_one_handler(key: str, several: list[str]) -> None:
    with pytest.raises(ConfigError, match=rf"scheduling\.default\.(profiles\.default\.)?{key}: "):
        load({"scheduling": {"default": {key: several}}})


@pytest.mark.requirement("S3-14")
@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({"waiting": 2}, {"waiting": 20}),
        ({"kv_usage": 0.2}, {"kv_usage": 0.9}),
        ({"running_loras": ["sql"]}, {"running_loras": ["law"]}),
    ],
    ids=["queue", "KV cache", "adapters"],
)
def test_the_endpoint_is_chosen_by_queue_kv_cache_and_adapters(
    here: dict[str, object], there: dict[str, object]
) -> None:
    for seed in range(8):
        bench = Bench({"scorers": ["queue", "kv-utilization", "lora-affinity"]})
        bench.join("a", "b", loras=["sql", "law"])
        bench.hear("a", max_loras=1, **there)
        bench.hear("b", max_loras=1, **here)
        assert bench.chosen(bench.request(lora="sql"), seed) == "b"


@pytest.mark.requirement("S1-47")
def test_a_pool_of_many_models_has_one_policy() -> None:
    pool = {"models": ["small", "large"], "scheduling": "chat"}
    scheduling = {"default": {}, "chat": {"scorers": ["queue"]}}
    compiled = PolicyBook(registries()).compile(load({"pools": {"a": pool}, "scheduling": scheduling}))
    assert [scorer.name for scorer in compiled["a"].profiles["default"].scorers] == ["queue"]
    with pytest.raises(ConfigError, match=r"pools\.a\.scheduling"):
        load({"pools": {"a": pool | {"scheduling": ["default", "chat"]}}, "scheduling": scheduling})


class _Both(ProfileHandler):
    """Runs two profiles at once, and a third when one of them found no endpoint."""

    type_name = "both"

    def pick(
        self, request: ScheduleRequest, profiles: Collection[str], results: Mapping[str, Run | None]
    ) -> Sequence[str]:
        if not results:
            return ("one", "two")
        return ("three",) if results["two"] is None and "three" not in results else ()

    def process_results(self, request: ScheduleRequest, results: Mapping[str, Run | None]) -> Selection | None:
        run = results["one"]
        return None if run is None else Selection(run)


@pytest.mark.requirement("S2-28")
@pytest.mark.parametrize(("role", "ran"), [("decode", ["one", "two"]), ("encode", ["one", "two", "three"])])
def test_a_handler_may_run_several_profiles_at_a_time_and_more_after_them(role: str, ran: list[str]) -> None:
    extended = registries()._replace(handlers=Registry(ProfileHandler, (_Both,)))
    profiles: dict[str, object] = {"one": {}, "two": {"filters": [{"use": "role", "role": role}]}, "three": {}}
    settings = SchedulingPolicy.model_validate({"handler": "both", "profiles": profiles})
    bench = Bench()
    bench.join("a")
    outcome = bench.pool.decide(bench.request(), bench.now, 1, compile_policy("default", settings, extended))
    assert isinstance(outcome, Scheduled)
    assert [run.profile for run in outcome.runs] == ran


@pytest.mark.parametrize("count", [3, 7, 13, 100])
def test_equal_candidates_have_equal_totals_wherever_they_stand(count: int) -> None:
    weights = {"load-aware": 0.7, "kv-utilization": 1.3, "token-load": 2.9}
    bench = Bench({"scorers": [{"use": scorer, "weight": weight} for scorer, weight in weights.items()]})
    names = [f"w{number:03}" for number in range(count)]
    bench.join(*names)
    for step in range(20):
        bench.now += 60.0
        for name in names:
            bench.hear(name, waiting=step, kv_usage=step / 23)
        request = bench.request(prompt_tokens=100 + step)
        scores = bench.scores(request)
        assert len(set(scores.values())) == 1, step
        bench.pool.books.completed(request.key, bench.now, ok=True)


class _Last(Picker):
    type_name = "last"

    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Scores) -> Sequence[int]:
        kinds.append(type(totals))
        return [len(totals) - 1]


class _LastOfList(_Last):
    type_name = "last-of-list"
    takes_lists = True


kinds: list[type] = []


@pytest.mark.parametrize(
    ("picker", "count", "kind"),
    [("last", 3, np.ndarray), ("last", 70, np.ndarray), ("last-of-list", 3, list), ("last-of-list", 70, np.ndarray)],
)
def test_a_picker_gets_an_array_unless_it_takes_the_list_of_a_few(picker: str, count: int, kind: type) -> None:
    extended = registries()._replace(pickers=Registry(Picker, (_Last, _LastOfList)))
    settings = SchedulingPolicy.model_validate({"scorers": ["queue"], "picker": picker})
    bench = Bench()
    bench.join(*[f"w{number:02}" for number in range(count)])
    kinds.clear()
    outcome = bench.pool.decide(bench.request(), bench.now, 1, compile_policy("last", settings, extended))
    assert isinstance(outcome, Scheduled)
    assert outcome.endpoints[0].name == f"w{count - 1:02}"
    assert kinds == [kind]


def test_a_picker_that_replaces_one_for_lists_gets_an_array() -> None:
    given: list[type] = []

    class Watching(MaxScore):
        type_name = "watching"

        def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Scores) -> Sequence[int]:
            given.append(type(totals))
            return super().pick(request, candidates, totals)

    bench = Bench()
    bench.join("a", "b")
    extended = registries()._replace(pickers=Registry(Picker, (Watching,)))
    policy = compile_policy("watched", SchedulingPolicy.model_validate({"picker": "watching"}), extended)
    assert isinstance(bench.pool.decide(bench.request(), bench.now, 1, policy), Scheduled)
    assert (MaxScore.takes_lists, given) == (True, [np.ndarray])
