"""Requests that the edge decides alone, and requests that it refuses."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.journey import BodyEdit, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.worker import DrainNotice
from pointsman_core.config import Config, load
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.decider import AVOIDED_S, EngineLoad
from pointsman_edge.deciding.static_choice import (
    ALL,
    Closed,
    Eligible,
    EngineState,
    StaticChoice,
    best_standing,
    choose,
    model_names,
    static_policy,
)


def engines(own: dict[str, int] | None = None, avoided: str = "") -> EngineState:
    counts = Counter(own or {})
    return EngineState(counts.__getitem__, avoided.__eq__)


IDLE = engines()


def config(**changes: object) -> Config:
    return load(
        {
            "pools": {"p": {"models": ["m", "sql"], "loras": ["sql"]}, "q": {}},
            "models": {
                "alias": {"pool": "p", "served_as": "m", "groups": ["cheap"]},
                "big": {"provider": "elsewhere"},
            },
            "providers": {"elsewhere": {"kind": "openai", "base_url": "http://127.0.0.1:9"}},
            **changes,
        }
    )


def view(worker: str, **changes: object) -> WorkerView:
    return read_fields(WorkerView, {"worker": worker, "url": f"http://{worker}"} | changes)


def snapshot(pool: str, *views: WorkerView, models: tuple[str, ...] = ()) -> dict[str, PoolSnapshot]:
    return {pool: PoolSnapshot(pool=pool, source="c", sequence=1, at_ms=1, workers=views, models=models)}


def pick(
    settings: Config,
    pools: dict[str, PoolSnapshot],
    model: str,
    engines: EngineState = IDLE,
    turn: int = 0,
    eligible: Eligible = ALL,
) -> StaticChoice:
    return choose(settings, static_policy(settings), pools, model, engines, turn, eligible)


def workers(choice: StaticChoice) -> list[str]:
    return [endpoint.worker for endpoint in choice.endpoints]


def test_the_engine_with_the_fewest_own_attempts_comes_first() -> None:
    pools = snapshot("p", view("a"), view("b"), view("c"))
    choice = pick(config(), pools, "m", engines({"a": 2, "b": 0, "c": 1}))
    assert workers(choice) == ["b", "c", "a"]
    assert (choice.target, choice.body) == (Target(model="m", pool="p"), ())


def test_an_engine_that_failed_lately_comes_last() -> None:
    pools = snapshot("p", view("a"), view("b"))
    assert workers(pick(config(), pools, "m", engines(avoided="a"))) == ["b", "a"]


@given(st.integers(min_value=1, max_value=12), st.integers(min_value=0, max_value=50))
def test_equal_engines_take_turns(count: int, start: int) -> None:
    pools = snapshot("p", *(view(f"w{number}") for number in range(count)))
    first = [workers(pick(config(), pools, "m", turn=start + turn))[0] for turn in range(count)]
    assert len(set(first)) == count


@pytest.mark.parametrize("state", ["draining", "silent", "unreachable"])
def test_an_engine_that_wasnt_serving_is_left_out(state: str) -> None:
    assert workers(pick(config(), snapshot("p", view("a", state=state), view("b")), "m")) == ["b"]


def test_with_no_serving_engine_those_that_may_are_tried() -> None:
    pools = snapshot("p", view("a", state="silent"), view("b", state="draining"), view("c", state="unreachable"))
    assert workers(pick(config(), pools, "m")) == ["a", "c"]


def test_only_engines_that_have_the_model_or_adapter_are_asked() -> None:
    pools = snapshot("p", view("a", models=("m",)), view("b", models=("m",), loras=("sql",)))
    choice = pick(config(), pools, "sql")
    assert workers(choice) == ["b"]
    assert choice.target == Target(model="sql", pool="p", lora="sql", base="m")


def test_another_name_of_a_model_is_written_into_the_body() -> None:
    choice = pick(config(), snapshot("p", view("a")), "alias")
    assert choice.target.model == "m"
    assert choice.body == (BodyEdit(field="model", value="m"),)


def test_a_model_that_only_engines_report_is_served() -> None:
    assert pick(config(), snapshot("q", view("a"), models=("new",)), "new").target == Target(model="new", pool="q")


def test_engines_of_the_configuration_serve_before_the_first_snapshot() -> None:
    pool = {"models": ["m"], "discovery": "static", "engines": ["http://10.0.0.1:8000"]}
    choice = pick(load({"pools": {"p": pool}}), {}, "m")
    assert [(each.worker, each.url) for each in choice.endpoints] == [("10.0.0.1:8000", "http://10.0.0.1:8000")]


ONLY_ONE = {
    "a subset, by host": Eligible(subset=("10.0.0.8",)),
    "a subset, by host and port": Eligible(subset=("10.0.0.8:8000", "10.0.0.99")),
    "a worker that was given": Eligible(worker="10.0.0.8:8000"),
    "headers": Eligible.from_headers({"x-gateway-destination-endpoint-subset": "10.0.0.8, 10.0.0.99:1"}),
}
LISTED = [f"http://10.0.0.{number}:8000" for number in range(10)]


@pytest.mark.parametrize("told", [False, True], ids=["configured", "told"])
@pytest.mark.parametrize("name", ONLY_ONE)
def test_engines_that_may_not_be_chosen_are_left_out_before_the_shortest_list_is_made(name: str, told: bool) -> None:
    settings = load({"pools": {"p": {"models": ["m"], "discovery": "static", "engines": LISTED}}})
    views = [view(url.partition("//")[2], url=url, state="silent" if ".8:" in url else "serving") for url in LISTED]
    pools = snapshot("p", *views) if told else {}
    for turn in range(10):
        chosen = pick(settings, pools, "m", turn=turn, eligible=ONLY_ONE[name])
        assert workers(chosen) == ["10.0.0.8:8000"]


@pytest.mark.parametrize(
    ("eligible", "code"),
    [
        (Eligible(subset=()), "endpoint_not_in_subset"),
        (Eligible(subset=("10.0.0.9",)), "endpoint_not_in_subset"),
        (Eligible(worker="elsewhere"), "gateway_unavailable"),
    ],
)
def test_when_no_engine_may_be_chosen_it_is_503(eligible: Eligible, code: str) -> None:
    with pytest.raises(Closed) as refused:
        pick(config(), snapshot("p", view("a")), "m", eligible=eligible)
    assert (refused.value.status, refused.value.code) == (503, code)


def test_an_unknown_model_is_404_and_names_the_known_ones() -> None:
    with pytest.raises(Refusal) as refused:
        pick(config(), snapshot("q", view("a"), models=("new",)), "bigg")
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")
    assert refused.value.message == (
        "The model 'bigg' does not exist. Did you mean 'big'? Known models: alias, big, m, sql, new."
    )


def test_a_name_that_a_cluster_may_rewrite_is_503_since_only_the_stages_know_it() -> None:
    pool = {"models": ["m"], "discovery": "kubernetes", "kubernetes": {"inference_pool": "llama"}}
    settings = load({"pools": {"p": pool}})
    assert pick(settings, snapshot("p", view("a")), "m").target.model == "m"
    with pytest.raises(Closed) as refused:
        pick(settings, snapshot("p", view("a")), "food")
    assert (refused.value.status, refused.value.retry_after_s) == (503, 1.0)


@pytest.mark.parametrize("model", ["m", "auto"])
def test_a_model_without_a_reachable_engine_is_503_with_retry_after(model: str) -> None:
    selecting = config(selectors={"s": {}}, profiles={"only": {"request": ["model-selector/s", "scheduler"]}})
    with pytest.raises(Closed) as refused:
        pick(selecting, {}, model)
    assert (refused.value.status, refused.value.retry_after_s) == (503, 1.0)


def test_a_provider_serves_its_model_without_any_engine_or_stage() -> None:
    choice = pick(config(), {}, "big")
    assert choice.target == Target(model="big", provider="elsewhere")
    assert [(each.worker, each.url, each.target) for each in choice.endpoints] == [("elsewhere", "", choice.target)]


@pytest.mark.parametrize(("asked", "given"), [("auto", "m"), ("auto/cheap", "m")])
def test_a_selectors_first_model_with_an_engine_stands_in_for_auto(asked: str, given: str) -> None:
    selecting = config(selectors={"s": {}}, profiles={"only": {"request": ["model-selector/s", "scheduler"]}})
    choice = pick(selecting, snapshot("p", view("a")), asked)
    assert choice.target.model == given
    assert choice.body == (BodyEdit(field="model", value=given),)


@pytest.mark.requirement("S1-20")
def test_names_are_rewritten_here_too() -> None:
    settings = config(rewrites=[{"match": "prod", "to": {"m": 1, "sql": 1}}, {"match": "far*", "to": "big"}])
    choices = [pick(settings, snapshot("p", view("a")), "prod", turn=turn) for turn in range(40)]
    assert {choice.target.model for choice in choices} == {"m", "sql"}
    assert all(choice.body == (BodyEdit(field="model", value=choice.target.model),) for choice in choices)
    assert pick(settings, {}, "far-away").target.model == "big"
    assert "prod" in model_names(settings, {})


@pytest.mark.parametrize(
    ("rule", "selectable"), [({"profile": "chosen"}, True), ({"share": {"split": {"chosen": 1}}}, True), (None, False)]
)
def test_auto_needs_a_selector_in_a_profile_that_rules_may_choose(
    rule: dict[str, object] | None, selectable: bool
) -> None:
    rules = [{"when": 'path == "/"', "profile": "plain"}, *([{"when": "true"} | rule] if rule else [])]
    settings = config(
        profiles={"plain": {}, "chosen": {"request": ["model-selector/s", "scheduler"]}},
        selectors={"s": {"models": ["alias"]}},
        **{"profile-picker": {"use": "rules", "rules": rules, "default": "plain"}},
    )
    assert bool(static_policy(settings).selectable) is selectable


def test_auto_without_a_selector_is_no_model() -> None:
    with pytest.raises(Refusal) as refused:
        pick(config(), snapshot("p", view("a")), "auto")
    assert refused.value.status == 404


POLICIES: dict[str, tuple[dict[str, object], str | None]] = {
    "plain": ({}, None),
    "processors": (
        {"profiles": {"a": {"processors": {"before_model": ["set-headers"]}}}},
        "profile a has request processors, which run in other services",
    ),
    "denied": ({"profiles": {"a": {"static": "deny"}}}, "profile a doesn't allow it"),
    "one of several denies": (
        {"profile-picker": {"use": "rules", "default": "a"}, "profiles": {"a": {}, "b": {"static": "deny"}}},
        "profile b doesn't allow it",
    ),
    "the only possible one allows": (
        {"profile-picker": {"use": "single", "profile": "a"}, "profiles": {"a": {}, "b": {"static": "deny"}}}, None,
    ),
    "a default profile of the single picker": (
        {"profile-picker": {"use": "single", "default": "a"}, "profiles": {"a": {}, "b": {"static": "deny"}}}, None,
    ),
    "a guard": ({"profiles": {"a": {"request": ["guard", "scheduler"]}}}, "profile a requires guard"),
    "a guard on the way back": (
        {"profiles": {"a": {"response": ["guard"]}}}, "profile a requires guard for responses",
    ),
    "a stage for every answer": (
        {"stages": {"mine": {"mode": "buffer"}}, "postprocessing": ["mine"]}, "postprocessing requires mine",
    ),
    "a stage after every answer": ({"stages": {"mine": {}}, "postprocessing": ["mine"]}, None),
    "a guard that may be missing": (
        {"profiles": {"a": {"request": [{"stage": "guard", "on_error": "allow"}, "scheduler"]}}}, None,
    ),
    "a stage of somebody's that may be missing": (
        {"stages": {"mine": {"on_error": "allow"}}, "profiles": {"a": {"request": ["mine", "scheduler"]}}}, None,
    ),
    "authentication": ({"preprocessing": ["api-key-auth"]}, "preprocessing plugin api-key-auth can't be skipped"),
    "a plugin that may be skipped": (
        {"preprocessing": [{"use": "limit", "name": "mine"}], "edge": {"static_skips": ["mine"]}}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
def test_the_edge_decides_alone_only_where_nothing_is_skipped_that_is_insisted_on(name: str) -> None:
    changes, reason = POLICIES[name]
    assert static_policy(config(**changes)).closed == reason


RULED: dict[str, object] = {"profile-picker": {"use": "rules", "default": "a"}, "profiles": {"a": {}, "b": {}}}


def test_the_profile_is_named_only_when_there_is_no_doubt() -> None:
    several = config(**RULED)
    assert static_policy(config()).profile == "standard"
    assert static_policy(several).profile == ""


def test_attempts_are_counted_and_failures_forgotten() -> None:
    load_ = EngineLoad()
    load_.begin_attempt("a")
    load_.begin_attempt("a")
    load_.end_attempt("a")
    assert (load_.open_on("a"), load_.open_on("b")) == (1, 0)
    load_.record_failure("a", 100.0)
    assert load_.is_avoided("a", 100.0 + AVOIDED_S / 2)
    assert not load_.is_avoided("a", 100.0 + AVOIDED_S)
    assert not load_.is_avoided("b", 100.0)


def test_a_pool_whose_engines_all_fail_a_signal_is_still_served() -> None:
    def standing(**states: tuple[str, str]) -> list[str]:
        views = [
            WorkerView(worker=name, url=f"http://{name}", state=state, verdict=verdict)
            for name, (state, verdict) in states.items()
        ]
        return [view.worker for view in best_standing(views)]

    everything = {"drains": ("draining", ""), "silent": ("silent", ""), "ill": ("serving", "ejected")}
    assert standing(**everything, well=("serving", "")) == ["well"]
    assert standing(**everything, lacks=("serving", "lacking")) == ["lacks"]
    assert standing(**everything) == ["ill"]
    del everything["ill"]
    assert standing(**everything, late=("not_ready", "")) == ["silent", "late"]
    assert standing(drains=("draining", "")) == ["drains"]
    ended = WorkerView(worker="ended", url="u", state="unreachable", draining=DrainNotice(left_ms=0, why="upgrade"))
    late = WorkerView(worker="late", url="u", state="not_ready")
    assert best_standing([ended, late]) == [late]
    assert standing() == []
