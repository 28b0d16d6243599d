"""The adapter's rules, without Envoy: which endpoints may answer, their addresses, and the changes of answers."""

from collections import Counter

import pytest
from msgspec.structs import replace

from pointsman_apis import named
from pointsman_contracts.cascade import ConfidenceRule
from pointsman_contracts.journey import AnswerUse, CascadeStep, HeaderEdit, Stage, Target
from pointsman_contracts.message import read_fields
from pointsman_contracts.pool import PoolSnapshot, WorkerView
from pointsman_contracts.reply import ChosenEndpoint
from pointsman_core.config import load
from pointsman_edge.deciding.static_choice import Closed, Eligible, EngineState
from pointsman_edge.sending.model_name import ModelName
from pointsman_epp_adapter.adapters.other_paths import path_meant
from pointsman_epp_adapter.domain.answer import HELD, Answer
from pointsman_epp_adapter.domain.any_engine import any_engine
from pointsman_epp_adapter.domain.destination import Destination, destinations
from pointsman_epp_adapter.domain.envoys_answers import AnsweredByEnvoy, unanswered
from pointsman_epp_adapter.domain.mutation import HeaderChanges, answered, stripped
from pointsman_epp_adapter.domain.protocol_headers import told, worker_headers
from pointsman_epp_adapter.domain.unseen_answers import without_cascade, without_response_stages
from pointsman_testing import builders

CONFIG = load({"pools": {"p": {}, "q": {}}})


def pool(name: str, *workers: WorkerView) -> dict[str, PoolSnapshot]:
    return {name: PoolSnapshot(pool=name, source="c", sequence=1, at_ms=1, workers=workers)}


def view(worker: str, **changes: object) -> WorkerView:
    return read_fields(WorkerView, {"worker": worker, "url": f"http://{worker}"} | changes)


def test_any_engine_is_one_that_serves_a_configured_pool_with_the_least_to_do() -> None:
    pools = (
        pool("p", view("left", state="draining"), view("nowhere", url=""), view("busy", running=1, waiting=8))
        | pool("q", view("failing"), view("mine", running=0), view("idle", running=8))
        | pool("former", view("removed"))
    )
    engines = EngineState(Counter({"mine": 1}).__getitem__, "failing".__eq__)
    assert [each.worker for each in any_engine(CONFIG, pools, engines, Eligible())] == ["idle", "busy", "mine"]
    few = pool("p", view("failing"), view("mine"))
    assert [each.worker for each in any_engine(CONFIG, few, engines, Eligible())] == ["mine", "failing"]
    draining = pool("p", view("left", state="draining"))
    assert [each.worker for each in any_engine(CONFIG, draining, engines, Eligible())] == ["left"]
    with pytest.raises(Closed, match="No engine is known"):
        any_engine(CONFIG, pool("p", view("nowhere", url="")), engines, Eligible())
    with pytest.raises(Closed, match="that the proxy allows"):
        any_engine(CONFIG, few, engines, Eligible(subset=("10.0.0.1",)))


def test_an_address_is_listed_once_for_the_first_choice_and_never_for_another_model() -> None:
    chosen = [
        ChosenEndpoint(worker="elsewhere", url="http://10.0.0.2:8000", target=Target(model="other", pool="p")),
        ChosenEndpoint(worker="first", url="http://10.0.0.1:8000"),
        ChosenEndpoint(worker="same", url="http://10.0.0.1:8000/"),
        ChosenEndpoint(worker="six", url="http://[fd00::1]:8000"),
    ]
    assert destinations(chosen) == [Destination("first", "10.0.0.1:8000"), Destination("six", "[fd00::1]:8000")]


def test_envoy_falls_back_to_endpoints_of_the_same_rank_alone() -> None:
    """It sends every attempt the same header."""
    chosen = [
        ChosenEndpoint(worker="a-rank-1", url="http://10.0.0.1:8000", rank=1),
        ChosenEndpoint(worker="a-rank-0", url="http://10.0.0.1:8000", rank=0),
        ChosenEndpoint(worker="b-rank-0", url="http://10.0.0.2:8000", rank=0),
        ChosenEndpoint(worker="c-rank-1", url="http://10.0.0.3:8000", rank=1),
        ChosenEndpoint(worker="whole", url="http://10.0.0.4:8000"),
    ]
    assert [each.worker for each in destinations(chosen)] == ["a-rank-1", "c-rank-1"]
    assert [each.worker for each in destinations(reversed(chosen))] == ["whole"]


def test_dynamo_gets_the_name_of_the_first_of_several_prefillers() -> None:
    named = {"10.0.0.1:8000": "prefill-1"}
    edits = [
        (b"x-prefiller-host-port", b"10.0.0.1:8000,10.0.0.2:8000"),
        (b"x-data-parallel-rank", b"3"),
        (b"x-prefiller-rank", b"5/8"),
    ]
    told = dict(worker_headers("decode-1", edits, named.get))
    assert told[b"x-prefill-instance-id"] == told[b"x-dynamo-prefill-instance-id"] == b"prefill-1"
    assert told[b"x-worker-instance-id"] == b"decode-1"
    assert told[b"x-dp-rank"] == told[b"x-dynamo-dp-rank"] == b"3"
    assert told[b"x-prefill-dp-rank"] == told[b"x-dynamo-prefill-dp-rank"] == b"5"
    assert told[b"x-dynamo-routing-mode"] == b"disaggregated"
    assert dict(worker_headers("decode-1", [], named.get))[b"x-dynamo-routing-mode"] == b"aggregated"


@pytest.mark.parametrize(("status", "told"), [(500, 502), (502, 502), (503, 503), (504, 504), (505, 502)])
def test_a_failure_of_envoys_own_has_the_status_that_a_client_may_act_on(status: int, told: int) -> None:
    assert AnsweredByEnvoy(status, "upstream_reset").status == told
    assert unanswered(status).status == told
    assert unanswered(status).retry_after_s == (1.0 if told == 503 else None)


def test_headers_that_envoy_writes_itself_are_not_taken_from_it() -> None:
    assert stripped([b":path", b"host", b"content-length", b"te", b"cookie", b"accept"], [b"accept"]) == ["cookie"]


def test_a_header_that_one_stage_removes_and_another_sets_is_set() -> None:
    before = HeaderChanges([(b"x-level", b"full")], ["x-one"])
    edits = [
        HeaderEdit(name="X-One", value="1"),
        HeaderEdit(name="x-engine", value=None),
        HeaderEdit(name="x-two", value=None),
        HeaderEdit(name="x-level", value="checked"),
    ]
    assert answered(before, edits, {b"x-one", b"x-engine"}) == HeaderChanges(
        [(b"x-one", b"1"), (b"x-level", b"checked")], ["x-engine"]
    )


@pytest.mark.parametrize("use", [None, AnswerUse(mode="window"), AnswerUse(mode="buffer")])
def test_a_client_that_would_wait_for_a_stage_is_refused_where_none_is_run(use: AnswerUse | None) -> None:
    decision = builders.decision()
    insists = Stage(service="redact", on_error="deny", answer=use)
    with pytest.raises(Closed, match="requires that redact"):
        without_response_stages(decision, [insists])
    after = Stage(service="audit", on_error="deny", answer=AnswerUse(mode="after"))
    may_go = replace(insists, on_error="allow")
    gone = without_response_stages(replace(decision, response=(may_go,)), [after])
    assert (gone.level, gone.reasons) == (
        "degraded",
        ("no redact reviews the response", "no audit reviews the response"),
    )
    assert without_response_stages(decision, []) is decision


def test_behind_envoy_a_cascade_is_its_first_model_and_the_decision_says_so() -> None:
    step = CascadeStep(model="small", rest=("large",), confident=ConfidenceRule())
    larger = (Target(model="large", pool="p"),)
    gone = without_cascade(builders.decision(cascade=step, alternatives=larger))
    assert (gone.cascade, gone.level, gone.alternatives) == (None, "degraded", larger)
    assert gone.reasons == ("the first model's answer isn't judged behind Envoy",)


@pytest.mark.parametrize(
    "spelt", ["/metrics/", "//metrics", "/%6Detrics", "/%256Detrics", "/%25256Detrics", "/v1/..\\METRICS", "metrics/."]
)
def test_a_path_is_known_in_any_spelling_that_an_engine_may_understand(spelt: str) -> None:
    assert path_meant(spelt) == "/metrics"


def test_an_empty_wish_for_another_model_is_none() -> None:
    assert told({"x-llm-d-model-name-rewrite": ""}, None) == ({}, None)
    assert told({"x-llm-d-model-name-rewrite": "m"}, ("10.0.0.1",)) == (
        {"x-gateway-destination-endpoint-subset": "10.0.0.1"}, "m",
    )  # fmt: skip


def test_a_document_is_renamed_whole_unless_it_is_too_long_to_be_held() -> None:
    headers = [(b":status", b"200"), (b"content-type", b"application/json")]
    start, rest = b'{"model":"served","x":"', b'"}'
    short = Answer(headers, named("chat.completions"), ModelName("served", "asked"))
    assert short.feed(start, end=False) == b""
    assert short.feed(rest, end=True) == b'{"model":"asked","x":""}'
    long = Answer(headers, named("chat.completions"), ModelName("served", "asked"))
    assert long.feed(start, end=False) == b""
    passing = long.feed(b" " * HELD, end=False)
    assert (len(passing), passing.startswith(start)) == (len(start) + HELD, True)
    assert long.feed(rest, end=True) == rest
