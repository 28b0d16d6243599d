"""Who may serve a request, filter by filter."""

import pytest

from pointsman_contracts.worker import DrainNotice
from pointsman_testing.scheduler_bench import Bench, explained

LONG = {"use": "context-length", "label": "lengths"}


def only(*filters: object) -> dict[str, object]:
    return {"filters": list(filters), "scorers": ["queue"]}


def reasons(bench: Bench, **facts: object) -> dict[str, str]:
    return explained(bench.decide(bench.request(**facts)))[0][0].candidates.filtered


@pytest.mark.parametrize("state", ["draining", "unreachable"])
def test_a_worker_that_takes_no_new_request_is_out_and_the_reason_says_so(state: str) -> None:
    bench = Bench(only("healthy"))
    bench.join("a", "b")
    bench.hear("b", state=state)
    assert bench.survivors() == {"a"}
    assert reasons(bench) == {"b": f"healthy: {state}"}


def test_a_silent_worker_is_out_while_others_are_heard() -> None:
    bench = Bench(only("healthy"))
    bench.join("a", "b")
    for _ in range(3):
        assert bench.survivors() == {"a", "b"}
        bench.now += 0.5
        bench.hear("a")
    assert bench.survivors() == {"a"}
    assert reasons(bench) == {"b": "healthy: silent for 1.5 s"}


def test_when_all_are_silent_all_are_candidates_and_the_decision_says_that_it_is_degraded() -> None:
    bench = Bench(only("healthy"))
    bench.join("a", "b")
    bench.now += 2.0
    outcome = bench.decide()
    assert outcome.selection.primary.candidates.size == 2
    assert outcome.reasons[0] == "no worker was heard lately: all get requests"
    assert "2000 ms old" in outcome.reasons[1]


def test_a_worker_that_lists_other_models_is_out_while_a_peer_lists_the_requests_own() -> None:
    bench = Bench(only("healthy"))
    bench.join("a", models=("m",))
    bench.join("b", models=("other",))
    bench.join("c")
    assert bench.survivors(bench.request(model="m")) == {"a", "c"}
    assert reasons(bench, model="m") == {"b": "healthy: lists other models than m, which a peer lists"}
    assert bench.survivors(bench.request(model="other")) == {"b", "c"}
    assert bench.survivors(bench.request(model="alias")) == {"a", "b", "c"}, "engines may list it by another name"
    bench.register("b", models=("other", "m"))
    assert bench.survivors(bench.request(model="m")) == {"a", "b", "c"}


def test_a_worker_with_another_model_does_not_serve_although_all_others_fail() -> None:
    bench = Bench(only("healthy"))
    bench.join("a", models=("m",))
    bench.join("b", models=("other",))
    bench.hear("a", state="not_ready")
    assert bench.survivors(bench.request(model="m")) == {"a"}
    bench.hear("a", state="draining")
    with pytest.raises(AssertionError, match="lists other models than m"):
        bench.decide(bench.request(model="m"))


def test_silent_workers_do_not_come_back_for_draining_ones() -> None:
    bench = Bench(only("healthy"))
    bench.join("a", "b")
    bench.hear("a", state="draining")
    bench.now += 2.0
    assert bench.survivors() == {"b"}


@pytest.mark.parametrize(
    ("states", "expected", "why"),
    [
        (("serving", "not_ready"), {"a"}, None),
        (("serving", "unreachable"), {"a"}, None),
        (("not_ready", "not_ready"), {"a", "b"}, "no worker is ready: all get requests"),
        (("unreachable", "unreachable"), {"a", "b"}, "no worker can be reached by its agent: all get requests"),
        (("unreachable", "not_ready"), {"b"}, "no worker is ready: all get requests"),
        (("draining", "unreachable"), {"b"}, "no worker can be reached by its agent: all get requests"),
        (("asleep", "not_ready"), {"b"}, "no worker is ready: all get requests"),
    ],
)
def test_a_signal_that_is_bad_for_all_is_not_believed_and_the_decision_says_so(
    states: tuple[str, str], expected: set[str], why: str | None
) -> None:
    bench = Bench(only("healthy"))
    bench.join("a", "b")
    for name, state in zip("ab", states, strict=True):
        bench.hear(name, state=state)
    assert bench.survivors() == expected
    assert bench.decide().reasons == ([] if why is None else [why])


def test_an_engine_that_ended_while_it_drained_gets_nothing() -> None:
    bench = Bench(only("healthy"))
    bench.join("a", "b")
    bench.hear("a", state="unreachable", draining=DrainNotice(left_ms=0, why="upgrade"))
    bench.hear("b", state="unreachable")
    assert bench.survivors() == {"b"}


@pytest.mark.requirement("S2-7")
def test_when_all_are_draining_or_asleep_the_request_gets_a_503_with_retry_after() -> None:
    bench = Bench(only("healthy"))
    bench.join("a", "b")
    bench.hear("a", state="draining")
    bench.hear("b", state="asleep")
    refusal = bench.refused().refusal
    assert refusal.message.endswith("healthy left no candidate (draining; asleep).")
    assert (refusal.status, refusal.dropped_reason) == (503, "rejected-no-endpoints")
    assert refusal.retry_after_s is not None


def test_a_pool_without_workers_gets_a_503_with_retry_after() -> None:
    refusal = Bench().refused().refusal
    assert (refusal.status, refusal.code, refusal.dropped_reason) == (503, "no_endpoints", "rejected-no-endpoints")
    assert refusal.retry_after_s is not None


@pytest.mark.parametrize(
    ("subset", "expected"),
    [
        (None, {"a", "b", "c"}),
        (("10.0.0.1",), {"a"}),
        (("10.0.0.1:8000", "10.0.0.2"), {"a", "b"}),
        (("10.0.0.1:9",), {"a"}),
        (("10.0.0.9:8000",), None),
        ((), None),
        (("fd00::3",), {"c"}),
        (("[fd00::3]:8000",), {"c"}),
        (("[fd00::3]",), {"c"}),
        ((" 10.0.0.2 ",), {"b"}),
    ],
)
def test_a_subset_names_hosts_or_addresses(subset: tuple[str, ...] | None, expected: set[str] | None) -> None:
    bench = Bench(only("subset"))
    for name, host in (("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "[fd00::3]")):
        bench.join(name, url=f"http://{host}:8000")
    request = bench.request(subset=subset)
    if expected is None:
        assert bench.refused(request).refusal.status == 503
    else:
        assert bench.survivors(request) == expected


def test_an_adapter_that_its_engine_lists_without_a_parent_is_served() -> None:
    bench = Bench(only("lora-capable"))
    bench.join("a", models=["base", "sql"])
    bench.join("b", models=["base"])
    assert bench.survivors(bench.request(model="sql", lora="sql")) == {"a"}


@pytest.mark.parametrize(("lora", "expected"), [(None, {"a", "b", "c"}), ("sql", {"a", "c"}), ("unheard-of", None)])
def test_an_adapter_is_served_where_it_is_registered_or_loaded(lora: str | None, expected: set[str] | None) -> None:
    bench = Bench(only("lora-capable"))
    bench.join("a", loras=["sql"])
    bench.join("b", "c")
    bench.hear("c", running_loras=["sql"], max_loras=2)
    request = bench.request(lora=lora)
    if expected is None:
        assert "lora-capable" in bench.refused(request).refusal.message
    else:
        assert bench.survivors(request) == expected


@pytest.mark.requirement("S1-18")
def test_a_pool_of_several_base_models_is_narrowed_to_the_workers_that_serve_the_one_asked_for() -> None:
    bench = Bench(only("serves"))
    bench.join("a", models=("small",))
    bench.join("b", models=("small", "large"))
    bench.join("silent", models=())
    assert bench.survivors(bench.request(model="large")) == {"b", "silent"}
    assert reasons(bench, model="large")["a"] == "serves: does not serve the model 'large'"
    assert bench.survivors(bench.request(model="small")) == {"a", "b", "silent"}
    bench.join("a", models=("large",))
    assert bench.survivors(bench.request(model="large")) == {"a", "b", "silent"}
    assert bench.survivors(bench.request(model="small")) == {"b", "silent"}
    assert bench.survivors(bench.request(model="sql", lora="sql")) == {"a", "b", "silent"}


def test_an_adapter_that_leaves_a_worker_is_no_longer_served_there() -> None:
    bench = Bench(only("lora-capable"))
    bench.join("a", "b")
    for name in ("a", "b"):
        bench.hear(name, running_loras=["sql"], max_loras=2)
    assert bench.survivors(bench.request(lora="sql")) == {"a", "b"}
    bench.now += 10
    bench.pool.books.edge_gone("edge-1", bench.now)
    bench.hear("b", running_loras=[], max_loras=2)
    assert bench.survivors(bench.request(lora="sql")) == {"a"}


@pytest.mark.requirement("S1-8")
@pytest.mark.parametrize(
    ("role", "expected"), [("prefill", {"p", "both", "e-p"}), ("decode", {"d", "both"}), ("encode", {"e-p"})]
)
def test_a_role_is_one_of_those_that_a_worker_registered(role: str, expected: set[str]) -> None:
    bench = Bench(only({"use": "role", "role": role}))
    bench.join("p", role="prefill")
    bench.join("d", role="decode")
    bench.join("both", role="both")
    bench.join("e-p", role="encode-prefill")
    bench.join("typo", role="decoder")
    assert bench.survivors() == expected
    assert reasons(bench)["typo"] == f"role: its role is 'decoder', not {role}"


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"match_labels": {"zone": "x"}}, {"a"}),
        ({"match_expressions": [{"key": "zone", "operator": "In", "values": ["x", "y"]}]}, {"a", "b"}),
        ({"match_expressions": [{"key": "zone", "operator": "NotIn", "values": ["x"]}]}, {"b", "c"}),
        ({"match_expressions": [{"key": "gpu", "operator": "Exists"}]}, {"a", "c"}),
        ({"match_expressions": [{"key": "gpu", "operator": "DoesNotExist"}]}, {"b"}),
        (
            {"match_labels": {"gpu": "h100"}, "match_expressions": [{"key": "zone", "operator": "DoesNotExist"}]},
            {"c"},
        ),
    ],
)
def test_a_label_selector_selects_as_in_kubernetes(selector: dict[str, object], expected: set[str]) -> None:
    bench = Bench(only({"use": "label-selector"} | selector))
    bench.join("a", labels={"zone": "x", "gpu": "h100"})
    bench.join("b", labels={"zone": "y"})
    bench.join("c", labels={"gpu": "h100"})
    assert bench.survivors() == expected


def test_a_worker_that_registers_other_labels_is_judged_by_them() -> None:
    bench = Bench(only({"use": "label-selector", "match_labels": {"zone": "x"}}))
    bench.join("a", "b", labels={"zone": "x"})
    bench.join("b", labels={"zone": "y"})
    assert bench.survivors() == {"a"}
    assert reasons(bench) == {"b": "label-selector: label 'zone' In x: has 'y'"}


def test_a_worker_over_a_limit_is_out_and_when_all_are_the_client_gets_retry_after() -> None:
    bench = Bench(only({"use": "utilization", "limits": [{"metric": "waiting", "max": 5}]}))
    bench.join("a", "b")
    bench.hear("b", waiting=6)
    assert reasons(bench) == {"b": "utilization: waiting 6 is over 5"}
    bench.hear("a", waiting=9)
    refusal = bench.refused().refusal
    assert (refusal.status, refusal.dropped_reason) == (429, "rejected-saturated")
    assert refusal.retry_after_s is not None


@pytest.mark.parametrize(
    ("metric", "load"), [("running", {"running": 9}), ("waiting", {"waiting": 9}), ("kv-usage", {"kv_usage": 0.99})]
)
def test_each_engine_metric_can_be_limited(metric: str, load: dict[str, object]) -> None:
    bench = Bench(only({"use": "utilization", "limits": [{"metric": metric, "max": 0.9}]}))
    bench.join("a", "b")
    bench.hear("a", **load)
    assert bench.survivors() == {"b"}


def test_a_limit_on_open_requests_counts_what_no_report_can_show_yet() -> None:
    bench = Bench(only({"use": "utilization", "limits": [{"metric": "open", "max": 0}]}))
    bench.join("a", "b")
    assert {bench.chosen(), bench.chosen()} == {"a", "b"}
    assert bench.refused().refusal.status == 429


def test_keep_lets_everybody_through_when_all_are_over_and_says_so() -> None:
    bench = Bench(only({"use": "utilization", "limits": [{"metric": "running", "max": 1}], "when_all_exceed": "keep"}))
    bench.join("a", "b")
    bench.hear("a", running=5)
    bench.hear("b", running=5)
    assert bench.decide().reasons == ["every worker is over its limits"]


def test_keep_still_removes_workers_over_the_limit_while_others_are_not() -> None:
    bench = Bench(only({"use": "utilization", "limits": [{"metric": "running", "max": 1}], "when_all_exceed": "keep"}))
    bench.join("a", "b")
    bench.hear("b", running=5)
    assert bench.survivors() == {"a"}
    assert bench.decide().reasons == []


@pytest.mark.parametrize(
    ("policy_filter", "suits", "suits_not"),
    [
        (LONG, {"max_context": 8192}, {"max_context": 1024}),
        (LONG, {"labels": {"lengths": "0-9999"}}, {"labels": {"lengths": "0-1000"}}),
        ("lora-capable", {"loras": ["sql"]}, {"loras": []}),
        ({"use": "role", "role": "prefill"}, {"role": "prefill"}, {"role": "decode"}),
        ({"use": "label-selector", "match_labels": {"zone": "x"}}, {"labels": {"zone": "x"}}, {"labels": {}}),
    ],
)
def test_a_filter_of_what_workers_registered_follows_the_fleet_and_the_filters_before_it(
    policy_filter: object, suits: dict[str, object], suits_not: dict[str, object]
) -> None:
    bench = Bench(only("healthy", policy_filter))
    asked = {"lora": "sql", "prompt_tokens": 4000, "tokens_exact": True}
    # The first in the fleet is already out, so that the columns of who is left begin at another row.
    bench.join("a-silent", **suits)
    bench.hear("a-silent", state="draining")
    bench.join("b", **suits_not)
    bench.join("c", **suits)
    assert bench.survivors(bench.request(**asked)) == {"c"}
    bench.join("b", **suits)
    assert bench.survivors(bench.request(**asked)) == {"b", "c"}
    bench.join("c", **suits_not)
    bench.join("d", **suits)
    bench.pool.books.edge_gone("edge-1", bench.now)  # an adapter is at home where a request for it is open
    assert bench.survivors(bench.request(**asked)) == {"b", "d"}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"prompt_tokens": 1000, "tokens_exact": True}, {"small", "large", "unsaid"}),
        ({"prompt_tokens": 5000, "tokens_exact": True}, {"large", "unsaid"}),
        ({"prompt_tokens": 4000, "max_output_tokens": 200, "tokens_exact": True}, {"large", "unsaid"}),
        ({"prompt_tokens": 5000, "tokens_exact": False}, {"small", "large", "unsaid"}),
        ({"prompt_tokens": 9000, "tokens_exact": False}, {"large", "unsaid"}),
    ],
)
def test_prompt_and_answer_must_fit_the_engine(facts: dict[str, object], expected: set[str]) -> None:
    bench = Bench(only("context-length"))
    bench.join("small", max_context=4096)
    bench.join("large", max_context=131072)
    bench.join("unsaid")
    assert bench.survivors(bench.request(**facts)) == expected


def test_a_prompt_too_long_for_every_engine_is_the_clients_mistake() -> None:
    bench = Bench(only("context-length"))
    bench.join("a", max_context=4096)
    refusal = bench.refused(bench.request(prompt_tokens=10_000, tokens_exact=True)).refusal
    assert (refusal.status, refusal.code) == (400, "context_length_exceeded")


def test_a_request_isnt_refused_for_the_turns_that_its_engine_keeps() -> None:
    bench = Bench(only("context-length"))
    bench.join("a", max_context=4096)
    assert bench.survivors(bench.request(prompt_tokens=10_000, continued_tokens=9_900)) == {"a"}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (0, {"short", "any"}),
        (1000, {"short", "any"}),
        (1001, {"long", "any"}),
        (100_000, {"long", "any"}),
        (100_001, {"any"}),
    ],
)
def test_workers_may_be_meant_for_lengths(tokens: int, expected: set[str]) -> None:
    bench = Bench(only(LONG))
    bench.join("short", labels={"lengths": "0-1000"})
    bench.join("long", labels={"lengths": "1001-100000"})
    bench.join("any")
    bench.join("unreadable", labels={"lengths": "many"})
    assert bench.survivors(bench.request(prompt_tokens=tokens)) == expected


@pytest.mark.requirement("S2-11", "S3-15")
def test_a_session_stays_where_it_is_until_its_worker_is_gone_or_it_is_forgotten() -> None:
    bench = Bench(only("healthy", "session"))
    bench.join("a", "b", "c", "d")
    home = bench.chosen(bench.request(session="s"))
    for seed in range(10):
        assert bench.chosen(bench.request(session="s"), seed) == home
    assert bench.survivors(bench.request(session="another")) == {"a", "b", "c", "d"}
    bench.hear(home, state="draining")
    elsewhere = bench.chosen(bench.request(session="s"))
    assert elsewhere != home
    bench.now += 301
    for name in "abcd":
        bench.hear(name)
    assert len(bench.survivors(bench.request(session="s"))) == 4


def test_a_long_match_keeps_a_prompt_where_its_prefix_is() -> None:
    bench = Bench({"filters": ["prefix-affinity"], "scorers": ["queue"]})
    bench.join("a", "b", "c")
    home = bench.serve(bench.prompt(family=1, blocks=10))
    assert bench.survivors(bench.prompt(family=1, blocks=10)) == {home}
    assert bench.survivors(bench.prompt(family=1, blocks=10, own_blocks=1)) == {home}
    assert bench.survivors(bench.prompt(family=1, blocks=10, own_blocks=5)) == {"a", "b", "c"}
    assert bench.survivors(bench.prompt(family=2, blocks=10)) == {"a", "b", "c"}


def test_affinity_ends_where_waiting_for_it_costs_too_much() -> None:
    bench = Bench(only({"use": "prefix-affinity", "max_penalty_ms": 1000, "prefill_throughput": 1000}, "session"))
    bench.join("a", "b")
    home = bench.serve(bench.prompt(family=1, blocks=10))
    bench.chosen(bench.prompt(family=1, blocks=10, own_blocks=2, session="s"))
    assert bench.survivors(bench.prompt(family=1, blocks=10)) == {home}
    for _ in range(3):
        bench.chosen(bench.prompt(family=1, blocks=10, own_blocks=2, session="s"))
    bench.chosen(bench.request(prompt_tokens=2000, session="s"))
    assert bench.survivors(bench.prompt(family=1, blocks=10)) == {"a", "b"}


def test_exploration_lets_a_share_of_requests_go_anywhere() -> None:
    bench = Bench(only({"use": "prefix-affinity", "exploration": 0.3}))
    bench.join("a", "b")
    bench.serve(bench.prompt(family=1, blocks=10))
    free = 0
    for seed in range(1000):
        request = bench.prompt(family=1, blocks=10)
        free += bench.decide(request, seed).selection.primary.candidates.size == 2
        bench.pool.books.completed(request.key, bench.now, ok=False)
    assert 230 <= free <= 370


def test_after_a_time_without_any_report_the_first_to_be_heard_is_not_the_only_one() -> None:
    bench = Bench(only("healthy"))
    bench.join("a", "b", "c")
    bench.join("dead")
    for _ in range(3):
        bench.now += 0.5
        for name in "abc":
            bench.hear(name)
    assert bench.survivors() == {"a", "b", "c"}
    bench.now += 5.0  # the bus is away
    bench.hear("b")
    assert bench.survivors() == {"a", "b", "c"}
    bench.now += 1.3
    bench.hear("b")
    assert bench.survivors() == {"b"}
