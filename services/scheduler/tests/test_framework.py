"""The scheduling framework beside its decisions: the state of each plugin, and the data that plugins see."""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import pointsman_scheduler
from pointsman_contracts.journey import HeaderEdit
from pointsman_core.config import SchedulingPolicy
from pointsman_core.plugins import Key
from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.arrays import Floats
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import PreRequest, Producer, Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Selection
from pointsman_scheduler.domain.outcome import Scheduled
from pointsman_scheduler.domain.policy import Policy, compile_policy
from pointsman_scheduler.plugins import PRE_REQUESTS, SCORERS, registries
from pointsman_testing.scheduler_bench import Bench, explained

PACKAGE: Final = Path(pointsman_scheduler.__file__).parent
NUMBER: Final = Key("number", str)


class Number(Producer):
    """Gives each request an attribute of its own."""

    type_name = "number"
    produces = (NUMBER,)

    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        request.put(NUMBER, request.request_id)


class Curious(Scorer):
    """Written in Python; keeps what it saw."""

    type_name = "curious"
    consumes = (NUMBER,)
    seen: Final[list[tuple[object, ...]]] = []

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Floats:
        self.seen.append(
            (
                request.get(NUMBER),
                request.request_id,
                request.model,
                request.facts.prompt_tokens,
                dict(request.facts.headers),
            )
        )
        return np.linspace(0.0, 1.0, candidates.size)


class Stamp(PreRequest):
    """Writes a header."""

    type_name = "stamp"

    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]:
        return (HeaderEdit(name="x-stamp", value=request.request_id),)


def traced(settings: dict[str, object]) -> Policy:
    extended = registries()._replace(
        producers=Registry(Producer, (Number,)),
        scorers=Registry(Scorer, (*SCORERS, Curious)),
        pre_requests=Registry(PreRequest, (*PRE_REQUESTS, Stamp)),
    )
    return compile_policy("traced", SchedulingPolicy.model_validate(settings), extended)


@pytest.mark.requirement("S2-2", "S2-4", "S2-9", "S2-33", "S2-41", "S2-42")
def test_each_request_has_its_own_attributes_and_plugins_see_what_it_is() -> None:
    Curious.seen.clear()
    policy = traced({"scorers": ["curious"], "pre-request": ["stamp"]})
    bench = Bench()
    bench.join("a", "b")
    bench.pool.use([policy])
    for number in range(3):
        request = bench.request(model=f"m{number}", headers={"x-team": str(number)}, prompt_tokens=number)
        outcome = bench.pool.decide(request, bench.now, 1, policy)
        assert isinstance(outcome, Scheduled)
        assert outcome.endpoints[0].name == "b"
        assert list(outcome.headers) == [HeaderEdit(name="x-stamp", value=request.request_id)]
        name = request.request_id
        assert Curious.seen[-1] == (name, name, f"m{number}", number, {"x-team": str(number)})
    with pytest.raises(KeyError):
        bench.request().get(NUMBER)


ROLES: Final[dict[str, dict[str, object]]] = {
    "prefill": {"filters": [{"use": "role", "role": "prefill"}], "scorers": [{"use": "prefix-cache", "weight": 3}]},
    "decode": {
        "filters": [{"use": "role", "role": "decode"}],
        "scorers": [{"use": "latency", "weight": 2}, {"use": "kv-utilization", "weight": 5}],
        "picker": "max-score",
    },
}


def split(order: Sequence[str]) -> Bench:
    bench = Bench({"handler": "disaggregated", "profiles": {name: ROLES[name] for name in order}})
    bench.join("p1", "p2", role="prefill")
    bench.join("d1", "d2", role="decode")
    return bench


@pytest.mark.requirement("S2-3", "S2-44", "S2-32")
def test_profiles_have_the_same_results_in_whatever_order_they_are_written() -> None:
    benches = [split(("prefill", "decode")), split(("decode", "prefill"))]
    for seed in range(50):
        outcomes = [bench.decide(bench.prompt(family=seed % 5, blocks=10), seed=seed) for bench in benches]
        results = [
            {run.profile: (run.chosen, run.candidates.scores) for run in explained(each)[0]} for each in outcomes
        ]
        assert results[0] == results[1]
        assert set(results[0]) == {"prefill", "decode"}
        assert {each.selection.primary.profile for each in outcomes} == {"decode"}


@pytest.mark.requirement("S2-44")
def test_prefill_decode_and_shadow_profiles_load_with_their_weights() -> None:
    shadow: dict[str, object] = {"scorers": [{"use": "queue", "weight": 1}], "picker": {"use": "top-k", "k": 3}}
    for handler, profiles in (("disaggregated", ROLES), ("shadow", {"default": ROLES["decode"], "shadowbox": shadow})):
        settings = SchedulingPolicy.model_validate({"handler": handler, "profiles": profiles})
        compile_policy("golden", settings, registries())
        weights = {use.use: use.weight for profile in settings.profiles.values() for use in profile.scorers}
        assert weights.items() >= {"latency": 2, "kv-utilization": 5}.items()


@pytest.mark.requirement("S2-24")
def test_implementations_are_grouped_by_kind_and_share_their_types() -> None:
    for registry in registries():
        for plugin in registry.types.values():
            path = plugin.__module__.split(".")
            assert path[:2] == ["pointsman_scheduler", "plugins"]
            assert path[2] in {folder.name for folder in (PACKAGE / "plugins").iterdir() if folder.is_dir()}
            assert issubclass(plugin, registry.point)
            assert registry.point.__module__.startswith("pointsman_plugins.scheduling.")


@pytest.mark.requirement("S2-36", "S2-37")
def test_attributes_are_typed_constants_of_modules_that_produce_them() -> None:
    known = {key.name for plugin in registries().producers.types.values() for key in plugin.produces}
    for registry in registries():
        for plugin in registry.types.values():
            assert all(isinstance(key, Key) for key in (*plugin.consumes, *plugin.produces))
            assert {key.name for key in plugin.consumes} <= known | {"matched-tokens"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr="get" | "put", value=ast.Name(id="request")), args=[key, *_]):
                    assert not isinstance(key, ast.Constant), f"{path.name}: an attribute by a bare name"
                case _:
                    pass


@pytest.mark.requirement("S2-14", "S2-39", "S2-47")
def test_choosing_knows_neither_bus_nor_cluster_and_admission_and_sending_are_others_tasks() -> None:
    foreign = {"nats", "aiohttp", "fastapi", "pointsman_runtime", "kubernetes", "asyncio"}
    for folder in ("domain", "plugins"):
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not {name.partition(".")[0] for name in names} & foreign, path
