"""Every engine of the configuration is spoken for by exactly one living collector."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_core.config import load
from pointsman_engines.report import ReportedWorker
from pointsman_metrics_collector.domain.engines import Key, ScrapedEngine, Steps, listed_engines, steps
from pointsman_metrics_collector.domain.ownership import owner

CONFIG = load(
    {
        "pools": {
            "a": {
                "models": ["m", "sql"],
                "loras": ["sql"],
                "discovery": "static",
                "engines": [
                    "http://e1:8000/",
                    {
                        "url": "http://e2:8000",
                        "name": "second",
                        "engine": "triton",
                        "metrics_url": "http://e2:8002/metrics",
                        "role": "decode",
                        "labels": {"rack": "7"},
                    },
                ],
            },
            "b": {"models": ["n"]},
        }
    }
)

instance_names = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=5)
keys = st.sets(st.tuples(st.text(max_size=5), st.text(max_size=80)), max_size=20)


def engine(key: Key, url: str = "http://e") -> ScrapedEngine:
    return ScrapedEngine(ReportedWorker(*key, url))


def test_the_configuration_names_engines_by_url() -> None:
    assert listed_engines(CONFIG) == {
        ("a", "e1:8000"): ScrapedEngine(ReportedWorker("a", "e1:8000", "http://e1:8000", models=("m",))),
        ("a", "second"): ScrapedEngine(
            ReportedWorker("a", "second", "http://e2:8000", "decode", {"rack": "7"}, ("m",)),
            "triton",
            "http://e2:8002/metrics",
        ),
    }


@given(instance_names, keys)
def test_each_engine_is_started_by_exactly_one_instance(instances: set[str], names: set[Key]) -> None:
    named = {key: engine(key) for key in names}
    started = [key for instance in instances for key in steps({}, named, instance, lambda _pool: instances).start]
    assert sorted(started) == sorted(names)


@given(instance_names, keys, st.data())
def test_an_instance_that_goes_moves_only_its_own_share(
    instances: set[str], names: set[Key], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(sorted(instances)))
    left = instances - {gone}
    if not left:
        return
    for key in names:
        before = owner(*key, instances)
        assert owner(*key, left) == before or before == gone


def test_the_engines_spoken_for_follow_the_configuration_and_the_other_collectors() -> None:
    key: Key = ("p", "w")
    named: dict[Key, ScrapedEngine] = {key: engine(key)}
    none: dict[Key, ScrapedEngine] = {}

    def both(_pool: str) -> list[str]:
        return ["c-1", "c-2"]

    first, second = sorted(["c-1", "c-2"], key=lambda name: owner(*key, ["c-1", "c-2"]) != name)
    assert steps(none, named, first, both) == Steps(start=(key,))
    assert steps(none, named, second, both) == Steps()
    assert steps(named, named, first, both) == Steps()
    assert steps(named, named, second, both) == Steps(hand_over=(key,))
    assert steps(none, named, second, lambda _pool: [second]) == Steps(start=(key,))
    assert steps(named, none, first, both) == Steps(remove=(key,))
    moved: dict[Key, ScrapedEngine] = {key: engine(key, "http://elsewhere")}
    assert steps(named, moved, first, both) == Steps(hand_over=(key,), start=(key,))
