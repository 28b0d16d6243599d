"""Each picker by itself: its inputs, its decisions, and the errors for wrong parameters."""

from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_contracts.journey import Journey, RequestFacts
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.timing import TIMES
from pointsman_core.config import ConfigError, load
from pointsman_core.refusal import Refusal
from pointsman_plugins.picking import PickError, PoolStates
from pointsman_profile_picker.configuration import check, compile_routing
from pointsman_profile_picker.domain.expression import ExpressionError, RuleEnvironment
from pointsman_profile_picker.domain.route import Routing
from pointsman_testing import builders

PROFILES: Final = {name: {"request": ["scheduler"]} for name in ("standard", "special", "overflow")}
SCHEDULED: Final = {"request": ["scheduler"]}


def routing(picker: object, **sections: object) -> Routing:
    return compile_routing(load({"profiles": PROFILES, "profile-picker": picker} | sections))


def problem(picker: object, **sections: object) -> str:
    with pytest.raises(ConfigError) as caught:
        check(load({"profiles": PROFILES, "profile-picker": picker} | sections))
    return str(caught.value)


def request(model: str = "m", **facts: object) -> Journey:
    fields = {"api": "chat.completions", "path": "/v1/chat/completions"} | facts
    return builders.journey("profile-picker", model=model, target=None, request=read_fields(RequestFacts, fields))


def saturated(pool: str, saturation: float, at_ms: int = 1, **changes: object) -> PoolSnapshot:
    fields: dict[str, object] = {
        "pool": pool,
        "source": "collector",
        "sequence": at_ms,
        "at_ms": at_ms,
        "workers": (WorkerView(worker="w", url="http://w", waiting=3, running=2, models=("live",)),),
        "saturation": saturation,
        "models": ("live",),
    }
    return read_fields(PoolSnapshot, fields | changes)


def pick(compiled: Routing, journey: Journey, pools: PoolStates | None = None, now_s: float = 0.0) -> str:
    return compiled.pick_profile(journey, pools or PoolStates(), now_s).profile


def rules(*conditions: str) -> Routing:
    listed = [{"when": condition, "profile": "special"} for condition in conditions]
    return routing({"use": "rules", "rules": listed, "default": "standard"}, pools={"a": {}, "b": {}})


@pytest.mark.requirement("S0-24")
@pytest.mark.parametrize(
    ("condition", "journey"),
    [
        ('model == "auto"', request("auto")),
        ('model.startsWith("llama")', request("llama-8b")),
        ('path == "/v1/embeddings"', request(path="/v1/embeddings")),
        ('api == "embeddings"', request(api="embeddings")),
        ('headers["x-priority"] == "high"', request(headers={"x-priority": "high"})),
        ('headers["X-Priority"] == "High"', request(headers={"x-priority": "High"})),
        ("headers[ 'X-Priority' ].startsWith('H')", request(headers={"x-priority": "High"})),
        ('"X-Priority" in headers', request(headers={"x-priority": "1"})),
        ("has(headers.Team) && headers.Team == 'A'", request(headers={"team": "A"})),
        ("headers.size() == 1 && headers.exists(name, name == 'team')", request(headers={"team": "A"})),
        ("""model == 'headers["X"]'""", request('headers["X"]')),
        ('has(headers.tier) && headers.tier == "gold"', request(headers={"tier": "gold"})),
        ("fields.temperature > 0.5", request(fields={"temperature": 0.7})),
        ("fields.n > 1", request(fields={"n": 2})),
        ('fields["service_tier"] == "flex"', request(fields={"service_tier": "flex"})),
        ('attributes["risk"] == "low"', request(attributes={"risk": "low"})),
        ('identity.tenant == "acme"', request(attributes={"identity": {"tenant": "acme"}})),
        ('"vision" in features', request(features=("tools", "vision"))),
        ("stream && prompt_tokens > 1000", request(stream=True, prompt_tokens=2000)),
        ("max_output_tokens == 0", request()),
        ("priority < 0", request(priority=-1)),
        ('session == "s"', request(session="s")),
    ],
)
def test_a_rule_can_read_every_kind_of_fact(condition: str, journey: Journey) -> None:
    """Headers, path, body fields, attributes, or any combination."""
    compiled = rules(condition)
    assert pick(compiled, journey) == "special"
    opposite = rules(f"!({condition})")
    assert pick(opposite, journey) == "standard"


def test_the_first_rule_that_holds_decides() -> None:
    compiled = routing(
        {
            "use": "rules",
            "rules": [
                {"when": 'model == "x"', "profile": "special"},
                {"when": "true", "profile": "overflow", "name": "catch all"},
                {"when": "true", "profile": "standard"},
            ],
        }
    )
    picked = compiled.pick_profile(request("y"), PoolStates(), 0.0)
    assert (picked.profile, picked.note) == ("overflow", "overflow: catch all")
    assert compiled.pick_profile(request("y"), PoolStates(), 1.0) is picked
    assert compiled.pick_profile(request("x"), PoolStates(), 1.0).note == "special: rule 1"


@pytest.mark.requirement("S0-25")
def test_external_models_are_chosen_only_when_every_internal_pool_is_saturated() -> None:
    compiled = routing(
        {
            "use": "rules",
            "rules": [{"when": "pools.all(name, pools[name].saturation >= 1.0)", "profile": "overflow"}],
            "default": "standard",
        },
        pools={"a": {}, "b": {}},
    )
    pools = PoolStates()
    assert pick(compiled, request(), pools) == "standard"
    pools.update(saturated("a", 1.2), 0.0)
    assert pick(compiled, request(), pools) == "standard"
    pools.update(saturated("b", 1.0), 0.0)
    assert pick(compiled, request(), pools) == "overflow"
    pools.update(saturated("a", 0.4, at_ms=2), 0.0)
    assert pick(compiled, request(), pools) == "standard"


def test_rules_read_what_a_pool_does() -> None:
    pools = PoolStates()
    pools.update(saturated("a", 0.5), 10.0)
    for condition in (
        "pools.a.saturation == 0.5",
        "pools.a.waiting == 3.0",
        "pools.a.running == 2.0",
        "pools.a.serving == 1.0",
        'pools["a"].age_ms == 2000.0',
        "pools.b.age_ms == -1.0",
    ):
        assert pick(rules(condition), request(), pools, 12.0) == "special"


def test_a_snapshot_that_comes_late_changes_nothing() -> None:
    pools = PoolStates()
    pools.update(saturated("a", 0.5, at_ms=5), 0.0)
    pools.update(saturated("a", 2.0, at_ms=4), 0.0)
    assert pools.get("a").facts["saturation"] == 0.5


def test_a_choice_on_old_pool_state_says_so_and_another_does_not() -> None:
    pools = PoolStates()
    pools.update(saturated("a", 0.5), 0.0)
    reading = rules("pools.a.saturation > 1.0")
    assert reading.pick_profile(request(), pools, 1.0).old_pools == ("b",)
    assert reading.pick_profile(request(), pools, TIMES.snapshot_old_s + 0.1).old_pools == ("a", "b")
    assert rules('model == "x"').pick_profile(request(), pools, 9.0).old_pools == ()


@pytest.mark.parametrize(
    "condition", ['headers["absent"] == "x"', "fields.absent > 3", "attributes.a.b == 1", "identity.tenant == 'a'"]
)
def test_a_rule_about_something_absent_does_not_hold(condition: str) -> None:
    assert pick(rules(condition), request(attributes={"a": {}})) == "standard"


@pytest.mark.requirement("S0-37")
@pytest.mark.parametrize(
    ("condition", "journey"),
    [
        ("fields.tier > 3", request(fields={"tier": "gold"})),
        ("1 / (prompt_tokens - 5) > 0", request(prompt_tokens=5)),
        ("attributes.flag", request(attributes={"flag": "yes"})),
    ],
)
def test_a_rule_that_fails_at_a_request_is_an_error_that_names_it(condition: str, journey: Journey) -> None:
    """An exception is always an error."""
    with pytest.raises(PickError) as caught:
        pick(rules('model == "other"', condition), journey)
    assert caught.value.rule == "rule 2"
    assert "gold" not in str(caught.value)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("model ==", "column 9: Syntax error"),
        ("model == 1", "no matching overload for '_==_' applied to '(string, int)'"),
        ("modle == 'x'", "unknown name 'modle'; did you mean 'model'? known: api,"),
        ("model", "a condition must be true or false; this expression is of type STRING"),
        ('pools["a"].saturation >= 1', "e.g. 1.0 instead of 1"),
        ('pools["c"].saturation >= 1.0', "unknown pool 'c'; known: a, b"),
        ("pools.c.saturation >= 1.0", "unknown pool 'c'; known: a, b"),
        ('pools["a"].saturaton >= 1.0', "unknown fact of a pool 'saturaton'; did you mean 'saturation'?"),
        ('pools["a"]["load"] >= 1.0', "unknown fact of a pool 'load'"),
        ("stream == 'yes'", "no matching overload"),
        ("(" * 10_000, "recursion limit exceeded"),
        ("true" + " || true" * 100_000, "expression size exceeds"),
        ("model == '\ud800'", "half of a surrogate pair"),
    ],
)
def test_a_broken_expression_is_a_configuration_error_that_names_the_rule(condition: str, words: str) -> None:
    picker = {
        "use": "rules",
        "rules": [{"when": "true", "profile": "special"}, {"when": condition, "profile": "special"}],
    }
    text = problem(picker, pools={"a": {}, "b": {}})
    assert text.startswith("profile-picker.rules.1.when: rule 2 (")
    assert words in text


@pytest.mark.requirement("S0-80")
@given(st.text() | st.from_regex(r"[a-z.\[\]()'\"&|!=<>0-9 ]{0,40}"))
def test_any_text_is_a_condition_or_refused_with_words(text: str) -> None:
    try:
        RuleEnvironment(("a", "b")).compile_condition(text)
    except ExpressionError as error:
        refused = str(error)
    else:
        refused = "-"
    assert refused


@pytest.mark.requirement("S0-33")
@pytest.mark.parametrize(
    ("picker", "words"),
    [
        ({"use": "rulez"}, "unknown profile picker type 'rulez'; did you mean 'rules'?"),
        ({"use": "rules"}, "rules: Field required"),
        ({"use": "rules", "rules": []}, "rules: at least 1 entry is needed"),
        ({"use": "rules", "rules": [{"when": "true"}]}, "a rule needs either `profile` or `share`"),
        (
            {"use": "rules", "rules": [{"when": "true", "profile": "specal"}]},
            "profile-picker.rules.0.profile: unknown profile 'specal'",
        ),
        (
            {"use": "rules", "rules": [{"when": "true", "share": {"split": {"nope": 1}}, "name": "r"}]},
            "profile-picker.rules.0.share.split: unknown profile 'nope'",
        ),
        ({"use": "rules", "rule": []}, "unknown parameter 'rule'; did you mean 'rules'?"),
        (
            {"use": "single", "profile": "specal"},
            "profile-picker.profile: unknown profile 'specal'; did you mean 'special'?",
        ),
        ({"use": "split", "split": {"special": 0}}, "greater than 0"),
        ({"use": "split", "split": {"nope": 1}}, "unknown profile 'nope'"),
        ({"use": "split", "split": {"special": 1}, "sticky": "cookie:x"}, "sticky"),
        ({"use": "attribute"}, "attribute: Field required"),
        ({"use": "attribute", "attribute": "a", "profiles": {"x": "nope"}}, "unknown profile 'nope'"),
    ],
)
def test_a_wrong_picker_is_refused_with_what_would_be_right(picker: object, words: str) -> None:
    text = problem(picker)
    assert text.startswith("profile-picker")
    assert words in text


@pytest.mark.requirement("S0-32", "S0-33", "S0-34")
def test_one_profile_needs_no_picker() -> None:
    compiled = compile_routing(load({"profiles": {"only": SCHEDULED}}))
    assert pick(compiled, request()) == "only"


def test_single_takes_the_profile_that_it_names() -> None:
    assert pick(routing({"use": "single", "profile": "special"}), request()) == "special"


@pytest.mark.requirement("S0-37", "S0-39")
def test_undecided_means_the_default_profile_or_an_error_as_configured() -> None:
    rule = {"when": 'model == "x"', "profile": "special"}
    assert pick(routing({"use": "rules", "rules": [rule], "default": "standard"}), request()) == "standard"
    for picker in (
        {"use": "rules", "rules": [rule]},
        {"use": "rules", "rules": [rule], "default": "standard", "on_undecided": "error"},
    ):
        with pytest.raises(Refusal) as caught:
            pick(routing(picker), request())
        assert (caught.value.status, caught.value.code) == (500, "no_profile")


def test_a_split_deals_by_weight_and_sticks_to_the_session() -> None:
    compiled = routing({"use": "split", "split": {"standard": 90, "special": 10}})
    dealt = Counter(pick(compiled, request(session=f"s{number}")) for number in range(2000))
    assert 130 < dealt["special"] < 270
    assert len({pick(compiled, request(session="s1")) for _ in range(20)}) == 1


def test_a_shift_of_weights_moves_no_session_back_and_forth() -> None:
    def arms(share: float) -> dict[str, str]:
        weights = {"standard": 100 - share, "special": share}
        compiled = routing({"use": "split", "split": {name: w for name, w in weights.items() if w}})
        return {f"s{number}": pick(compiled, request(session=f"s{number}")) for number in range(500)}

    before: set[str] = set()
    for share in (0, 10, 50, 100):
        special = {session for session, arm in arms(share).items() if arm == "special"}
        assert before <= special
        before = special
    assert len(before) == 500


@pytest.mark.parametrize(
    ("sticky", "journey"),
    [
        ("header:X-User", lambda: request(headers={"x-user": "u"})),
        ("identity:tenant", lambda: request(attributes={"identity": {"tenant": "t"}})),
        ("model", lambda: request("same")),
    ],
)
def test_a_split_sticks_by_its_configured_key(sticky: str, journey: Callable[[], Journey]) -> None:
    compiled = routing({"use": "split", "split": {"standard": 1, "special": 1}, "sticky": sticky})
    assert len({pick(compiled, journey()) for _ in range(40)}) == 1


def test_a_split_without_its_key_deals_by_request() -> None:
    compiled = routing({"use": "split", "split": {"standard": 1, "special": 1}})
    assert len({pick(compiled, request()) for _ in range(60)}) == 2


def test_a_rule_can_share_its_requests_out() -> None:
    rule = {"when": 'model == "auto"', "share": {"split": {"special": 1, "overflow": 1}, "sticky": "request"}}
    compiled = routing({"use": "rules", "rules": [rule], "default": "standard"})
    assert {pick(compiled, request("auto")) for _ in range(60)} == {"special", "overflow"}
    assert pick(compiled, request("m")) == "standard"


@pytest.mark.requirement("S0-31")
def test_an_attribute_picker_reads_a_decision_made_before() -> None:
    plain = routing({"use": "attribute", "attribute": "chosen", "default": "standard"})
    assert pick(plain, request(attributes={"chosen": "special"})) == "special"
    assert pick(plain, request()) == "standard"
    mapped = routing(
        {"use": "attribute", "attribute": "identity.plan", "profiles": {"gold": "special"}, "default": "standard"}
    )
    assert pick(mapped, request(attributes={"identity": {"plan": "gold"}})) == "special"
    assert pick(mapped, request(attributes={"identity": "text"})) == "standard"
    with pytest.raises(PickError, match=r"identity\.plan: its value matches none of gold"):
        pick(mapped, request(attributes={"identity": {"plan": "lead"}}))


RANKED: Final = {
    "use": "ranked",
    "options": [
        {"profile": "standard", "score": 'pools["a"].saturation < 1.0 ? 0.6 : 0.1'},
        {"profile": "special", "when": "prompt_tokens < 100", "score": 'pools["b"].saturation < 0.5 ? 0.9 : 0.2'},
    ],
}


@pytest.mark.requirement("S0-30")
@pytest.mark.parametrize(
    ("a", "b", "prompt_tokens", "profile"),
    [
        (0.0, 0.0, 10, "special"),
        (0.0, 0.8, 10, "standard"),
        (2.0, 0.8, 10, "special"),
        (2.0, 0.0, 500, "standard"),
    ],
)
def test_a_picker_of_filters_and_scores_takes_the_best_profile_that_is_left(
    a: float, b: float, prompt_tokens: int, profile: str
) -> None:
    compiled = routing(RANKED, pools={"a": {}, "b": {}})
    pools = PoolStates()
    pools.update(saturated("a", a), 0.0)
    pools.update(saturated("b", b), 0.0)
    picked = compiled.pick_profile(request(prompt_tokens=prompt_tokens), pools, TIMES.snapshot_old_s + 1)
    assert picked.profile == profile
    assert picked.old_pools == ("a", "b")


@pytest.mark.requirement("S0-30", "S0-37")
def test_a_picker_whose_filters_leave_nothing_is_undecided() -> None:
    never = {"use": "ranked", "options": [{"profile": "special", "when": 'headers["x-a"] == "b"'}]}
    assert pick(routing(never | {"default": "standard"}), request()) == "standard"
    with pytest.raises(Refusal):
        pick(routing(never), request())


@pytest.mark.requirement("S0-30")
@pytest.mark.parametrize(
    ("how", "scores", "profile"),
    [
        ("max-score", ("0.5", "0.6"), "special"),
        ("max-score", ("0.6", "0.5"), "standard"),
        ("max-score", ("0.5", "0.5"), "standard"),
        ("max-score", ("-1.0", "7.0"), "special"),
        ("max-score", ("2.0", "7.0"), "standard"),
        ("weighted-random", ("0.0", "0.1"), "special"),
        ("weighted-random", ("0.0", "0.0"), "standard"),
    ],
)
def test_the_best_score_wins_for_every_request(how: str, scores: tuple[str, str], profile: str) -> None:
    options = [{"profile": name, "score": score} for name, score in zip(("standard", "special"), scores, strict=True)]
    compiled = routing({"use": "ranked", "options": options, "pick": how})
    journeys = [replace(request(), request_id=f"r{number}") for number in range(50)]
    assert {pick(compiled, journey) for journey in journeys} == {profile}


@pytest.mark.requirement("S0-30")
def test_scores_can_be_odds() -> None:
    options = [{"profile": "standard", "score": "0.9"}, {"profile": "special", "score": "0.1"}]
    compiled = routing({"use": "ranked", "options": options, "pick": "weighted-random"})
    journeys = [replace(request(), request_id=f"r{number}") for number in range(1000)]
    dealt = Counter(pick(compiled, journey) for journey in journeys)
    assert 850 < dealt["standard"] < 950
    assert [pick(compiled, journey) for journey in journeys[:50]] == [
        pick(compiled, journey) for journey in journeys[:50]
    ]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"profile": "no"}, "unknown profile 'no'"),
        ({"profile": "special", "score": '"high"'}, "a score must be a number; this expression is of type STRING"),
        ({"profile": "special", "when": "1.0"}, "a condition must be true or false"),
        ({"profile": "special", "score": 'pools["c"].saturation'}, "unknown pool 'c'"),
    ],
)
def test_a_wrong_option_is_refused_with_its_place(option: dict[str, str], words: str) -> None:
    told = problem({"use": "ranked", "options": [option]})
    assert words in told
    assert "options" in told


def test_a_score_that_is_no_number_is_an_error_that_names_the_option() -> None:
    compiled = routing({"use": "ranked", "options": [{"profile": "special", "score": 'fields["n"]'}]})
    with pytest.raises(PickError, match="option special"):
        pick(compiled, request(fields={"n": "many"}))
    assert pick(compiled, request(fields={"n": 1})) == "special"
    assert pick(compiled, request()) == "special"
