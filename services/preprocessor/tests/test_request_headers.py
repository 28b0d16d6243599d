"""Headers decide some attributes, and some headers go no further than the preprocessor."""

import pytest

from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_core.refusal import Refusal
from pointsman_preprocessor.domain.request_headers import HEADERS_LIMIT, LONGEST_VALUE, read_headers


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "api-key",
        "x-goog-api-key",
        "x-amz-security-token",
        "x-vault-token",
        "x-client-secret",
        "x-hub-signature-256",
        "x-forwarded-access-token",
        "x-ms-token-aad-access-token",
    ],
)
def test_a_header_that_may_carry_a_credential_is_not_readable(name: str) -> None:
    assert read_headers({name: "s3cret", "accept": "*/*"}).readable == {"accept": "*/*"}


def test_a_session_token_is_no_credential() -> None:
    assert "x-session-token" in read_headers({"x-session-token": "cG9k"}).readable


def test_a_trusted_proxy_sets_priority_and_fairness() -> None:
    facts = read_headers({"x-pointsman-priority": "-3", "x-pointsman-fairness-id": "team-a"})
    assert (facts.priority, facts.fairness_id) == (-3, "team-a")


@pytest.mark.parametrize("name", ["x-priority", "x-pointsman-priority"])
def test_a_client_may_put_its_own_request_behind_all_others(name: str) -> None:
    assert read_headers({name: "batch", "x-pointsman-objective": "urgent"}).priority == BATCH_PRIORITY
    assert read_headers({name: "batch", "x-pointsman-objective": "urgent"}).objective is None
    assert read_headers({"x-priority": "batch", "x-pointsman-priority": "7"}).priority == 7


@pytest.mark.parametrize("name", ["priority", "x-priority", "x-llm-d-inference-fairness-id", "x-fairness-id"])
def test_headers_that_any_client_can_send_decide_neither_priority_nor_fairness(name: str) -> None:
    facts = read_headers({name: "9"})
    assert (facts.priority, facts.fairness_id) == (0, "")


def test_the_newest_name_of_a_service_level_wins() -> None:
    facts = read_headers({"x-slo-ttft-ms": "900", "x-llm-d-slo-ttft-ms": "300", "x-slo-tpot-ms": "20.5"})
    assert (facts.slo_ttft_ms, facts.slo_itl_ms) == (300.0, 20.5)


def test_an_empty_header_gives_no_worker_and_the_next_one_may() -> None:
    given = {"x-gateway-worker-id": "", "x-worker-instance-id": "w1", "x-prefill-instance-id": "w2"}
    assert read_headers({**given, "x-dynamo-prefill-instance-id": ""}).workers == ("w1", "w2")
    assert read_headers({"x-gateway-worker-id": ""}).workers is None


def test_a_blank_header_counts_as_none() -> None:
    names = ("x-pointsman-priority", "x-pointsman-fairness-id", "x-pointsman-objective", "x-session-id")
    for blank in ("", "  "):
        facts = read_headers(dict.fromkeys((*names, "x-slo-ttft-ms", "x-slo-tpot-ms"), blank))
        assert (facts.priority, facts.fairness_id, facts.objective, facts.session) == (0, "", None, None)
        assert (facts.slo_ttft_ms, facts.slo_itl_ms) == (None, None)
    given = {"x-pointsman-fairness-id": "", "x-gateway-inference-fairness-id": "team-b"}
    assert read_headers(given).fairness_id == "team-b"


def test_a_subset_names_endpoints() -> None:
    facts = read_headers({"x-gateway-destination-endpoint-subset": "10.0.0.1:8000, 10.0.0.2"})
    assert facts.subset == ("10.0.0.1:8000", "10.0.0.2")
    assert read_headers({"x-gateway-destination-endpoint-subset": " "}).subset == ()
    assert read_headers({}).subset is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-pointsman-priority", "high"),
        ("x-pointsman-priority", "1001"),
        ("x-slo-ttft-ms", "soon"),
        ("x-slo-ttft-ms", "nan"),
        ("x-slo-tpot-ms", "0"),
        ("x-slo-tpot-ms", "-1"),
        ("x-session-id", "x" * 257),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(Refusal, match="Invalid header") as caught:
        read_headers({name: value})
    assert caught.value.status == 400


def test_headers_that_would_fill_the_journey_are_left_out_and_counted() -> None:
    many = {f"x-{number}": "v" * 900 for number in range(40)}
    facts = read_headers({"x-long": "v" * (LONGEST_VALUE + 1), "x-session-id": "s", **many})
    assert sum(len(name) + len(value) for name, value in facts.readable.items()) <= HEADERS_LIMIT
    assert facts.dropped == 41 + 1 - len(facts.readable)
    assert facts.session == "s"
