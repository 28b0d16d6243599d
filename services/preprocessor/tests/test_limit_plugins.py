"""Limits as processors: what they count by, where their amounts come from, what they tell."""

import hashlib
import math
from collections.abc import Collection

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.api_key import ApiKey
from pointsman_contracts.limits import LimitAsk, LimitVerdict
from pointsman_contracts.response import Usage
from pointsman_core.config import ConfigError, load
from pointsman_core.rate import Rate, rate, rates
from pointsman_core.refusal import Refusal
from pointsman_limits.domain.limits.limiter import OwnBook
from pointsman_limits.domain.limits.output_lengths import OutputLengths
from pointsman_limits.domain.limits.question import GRACE_MS
from pointsman_limits.domain.limits.token_cost import TokenCost
from pointsman_limits.domain.limits.told import duration
from pointsman_plugins.preprocessing import IDENTITY, Incoming, Ports, Unavailable
from pointsman_preprocessor.configuration import check, compile_pipeline
from pointsman_preprocessor.domain.api_keys import KeyFacts, KeyStore, stored_key
from pointsman_preprocessor.domain.pipeline import Pipeline
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_testing import builders

NOW_MS = 1_800_000_000_000
IDENTIFIED = {"use": "identity-headers"}


def pipeline(*entries: object) -> Pipeline:
    return compile_pipeline(load({"preprocessing": list(entries)}))


def incoming(
    body: dict[str, JsonValue] | None = None,
    *,
    at_s: float = 0,
    headers: dict[str, str] | None = None,
    path: str = "/v1/chat/completions",
) -> Incoming:
    document: dict[str, JsonValue] = {"model": "m", "messages": [{"role": "user", "content": "x" * 388}]}
    envelope = builders.preprocess_request(
        path=path, received_ms=NOW_MS + round(at_s * 1000), deadline_ms=NOW_MS + 600_000, headers=headers or {}
    )
    raw = orjson.dumps(document | (body or {}))
    return Incoming(envelope, parse(envelope.path, raw), read_headers(envelope.headers))


def run(chain: Pipeline, request: Incoming) -> Refusal | None:
    try:
        assert chain.run(request) is None
    except Refusal as refusal:
        return refusal
    return None


def told(request: Incoming) -> dict[str, str | None]:
    return {name.removeprefix("x-ratelimit-"): edit.value for name, edit in request.answer_headers.items()}


def by(tenant: str, **more: str) -> dict[str, str]:
    return {f"x-pointsman-{name}": value for name, value in ({"tenant": tenant} | more).items()}


@pytest.mark.requirement("S3-5", "LIMIT-3")
def test_requests_over_the_rate_are_refused_in_openais_words_with_the_limits_name() -> None:
    chain = pipeline({"use": "infra-request-limit", "rate": "10/s", "burst": 2})
    first = incoming()
    assert run(chain, first) is None
    assert told(first) == {"limit-requests": "10", "remaining-requests": "1", "reset-requests": "100ms"}
    assert run(chain, incoming()) is None
    third = incoming()
    refusal = run(chain, third)
    assert refusal is not None
    assert (refusal.status, refusal.type, refusal.code) == (429, "requests", "rate_limit_exceeded")
    assert "infra-request-limit: 10 requests in 1 s" in refusal.message
    assert (refusal.retry_after_s, refusal.dropped_reason) == (1.0, "limit infra-request-limit")
    assert told(third) == {"limit-requests": "10", "remaining-requests": "0", "reset-requests": "200ms"}
    assert run(chain, incoming(at_s=0.1)) is None


@pytest.mark.requirement("S3-5")
def test_a_client_over_a_limit_of_the_infrastructure_gets_429_and_is_not_asked_for_a_key() -> None:
    key = {"sha256": "0" * 64, "id": "k", "tenant": "t"}
    chain = pipeline({"use": "infra-request-limit", "rate": "1/min"}, {"use": "api-key-auth", "keys": [key]})
    refusals = [run(chain, incoming()) for _ in range(2)]
    assert [refusal and refusal.status for refusal in refusals] == [401, 429]


@pytest.mark.requirement("S3-9")
def test_each_tenant_has_a_count_of_its_own() -> None:
    chain = pipeline(IDENTIFIED, {"use": "request-limit", "per": ["tenant"], "rate": "1/min"})
    assert run(chain, incoming(headers=by("a"))) is None
    assert run(chain, incoming(headers=by("b"))) is None
    refusal = run(chain, incoming(headers=by("a")))
    assert refusal is not None
    assert refusal.retry_after_s == 60
    assert "per tenant" in refusal.message
    assert run(chain, incoming(headers=by("a"), at_s=refusal.retry_after_s)) is None


@pytest.mark.requirement("S3-9")
def test_a_subject_without_a_tenant_has_its_own_count() -> None:
    chain = pipeline(IDENTIFIED, {"use": "request-limit", "per": ["tenant"], "rate": "1/min"})
    people = [incoming(headers={"x-pointsman-user": name}) for name in ("ann", "bob")]
    assert [run(chain, each) for each in people] == [None, None]
    assert run(chain, incoming(headers={"x-pointsman-user": "ann"})) is not None
    # A tenant whose name equals another's counter has a counter of its own.
    assert run(chain, incoming(headers=by("16:identity-headersann"))) is None
    assert len({charge.shard for each in people for charge in each.charges}) == 2


@pytest.mark.requirement("S3-18")
def test_scopes_combine_tenant_plan_model_and_headers() -> None:
    limit = {"use": "request-limit", "per": ["tenant", "plan", "model", "header:X-Team"], "rate": "1/h"}
    chain = pipeline(IDENTIFIED, limit)
    variants = [
        incoming(headers=by("a", plan="p") | {"x-team": "1"}),
        incoming(headers=by("b", plan="p") | {"x-team": "1"}),
        incoming(headers=by("a", plan="q") | {"x-team": "1"}),
        incoming(headers=by("a", plan="p") | {"x-team": "2"}),
        incoming({"model": "n"}, headers=by("a", plan="p") | {"x-team": "1"}),
        incoming(headers=by("a")),
    ]
    assert [run(chain, each) for each in variants] == [None] * len(variants)
    assert run(chain, incoming(headers=by("a", plan="p") | {"x-team": "2"})) is not None


def test_the_value_of_a_header_is_kept_as_a_hash() -> None:
    chain = pipeline({"use": "infra-request-limit", "per": ["header:authorization"], "rate": "1/h"})
    request = incoming(headers={"authorization": "Bearer canary-5d1e"})
    run(chain, request)
    assert "canary" not in repr(request.charges)
    assert run(chain, incoming(headers={"authorization": "Bearer canary-5d1e"})) is not None


@pytest.mark.requirement("S3-6", "S3-10")
def test_tokens_are_reserved_for_the_prompt_and_the_expected_answer() -> None:
    chain = pipeline({"use": "infra-token-limit", "amount": ["2000/min", "100k/d"]})
    plain = incoming({"max_tokens": 50})
    assert run(chain, plain) is None
    prompt = plain.prompt.tokens
    assert plain.charges[0].cost == prompt + 50
    assert told(plain)["remaining-tokens"] == str(2000 - prompt - 50)
    large = incoming({"max_tokens": 100_000})
    assert run(chain, large) is None
    assert large.charges[0].cost == 1000, "half of the smallest window at most"
    refusal = run(chain, incoming())
    assert refusal is not None
    assert (refusal.status, refusal.type) == (429, "tokens")


def test_no_more_is_reserved_for_an_answer_than_is_expected_however_much_the_request_allows() -> None:
    chain = pipeline({"use": "infra-token-limit", "amount": "1M/min", "expected_output": 10})
    for most, output in ((500, 10), (7, 7)):
        request = incoming({"max_tokens": most})
        assert run(chain, request) is None
        assert request.charges[0].cost == request.prompt.tokens + output


def test_a_limit_without_headers_still_sends_them_with_a_refusal() -> None:
    chain = pipeline({"use": "infra-request-limit", "rate": "1/min", "tell": False})
    requests = [incoming(), incoming()]
    assert [run(chain, each) is None for each in requests] == [True, False]
    assert told(requests[0]) == {}
    assert told(requests[1])["remaining-requests"] == "0"


def test_a_request_that_is_one_too_many_at_the_same_time_is_refused_as_a_request() -> None:
    chain = pipeline(IDENTIFIED, {"use": "concurrency-limit", "per": ["tenant"], "limit": 1})
    first = incoming(headers=by("a"))
    assert run(chain, first) is None
    assert first.charges[0].until_ms == first.envelope.deadline_ms + GRACE_MS
    assert first.charges[0].open_s == 600 + GRACE_MS / 1000, "whatever the clock of its keeper says"
    refusal = run(chain, incoming(headers=by("a")))
    assert refusal is not None
    assert (refusal.type, refusal.retry_after_s) == ("requests", 1.0)
    assert "1 requests at the same time" in refusal.message


class Unreachable(OwnBook):
    """The keeper is away."""

    def count_at_keeper(self, ask: LimitAsk, at: float) -> LimitVerdict:
        raise Unavailable("keeper away")


def test_a_limit_whose_keeper_is_away_counts_by_itself_and_is_reported_as_degraded() -> None:
    limit = {"use": "infra-request-limit", "rate": "1/min", "on_error": "degrade"}
    chain = compile_pipeline(load({"preprocessing": [limit]}), ports=Ports(Unreachable()))
    first, second = incoming(), incoming()
    assert run(chain, first) is None
    assert [charge.limit for charge in first.charges] == ["infra-request-limit"]
    refusal = run(chain, second)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
    assert [each.verdicts[-1].outcome for each in (first, second)] == ["degraded", "rejected"]
    assert first.degraded == ["infra-request-limit failed: keeper away"]


@pytest.mark.requirement("S3-6", "S3-10")
def test_every_choice_of_a_request_is_reserved_and_the_prompt_once() -> None:
    chain = pipeline({"use": "infra-token-limit", "amount": "1000/min"})
    request = incoming({"max_tokens": 50, "n": 4})
    assert run(chain, request) is None
    assert request.charges[0].cost == request.prompt.tokens + 200


def test_every_answer_to_every_prompt_of_a_completion_is_reserved_and_an_embedding_has_none() -> None:
    chain = pipeline({"use": "infra-token-limit", "amount": "1M/min", "expected_output": 10})
    several = incoming({"prompt": ["abcd" * 3, "abcd" * 5], "n": 2, "best_of": 3}, path="/v1/completions")
    assert run(chain, several) is None
    assert several.charges[0].cost == 3 + 5 + 2 * 3 * 10
    embedding = incoming({"input": ["abcd", "efgh"]}, path="/v1/embeddings")
    assert run(chain, embedding) is None
    assert embedding.charges[0].cost == 2


def test_a_cost_weighs_what_is_reserved_too() -> None:
    cost = "(input_tokens - cached_tokens) + cached_tokens * 0.1 + output_tokens * 4.0"
    chain = pipeline({"use": "infra-token-limit", "amount": "1M/min", "cost": cost, "expected_output": 10})
    request = incoming()
    assert run(chain, request) is None
    assert request.charges[0].cost == request.prompt.tokens + 40


@pytest.mark.parametrize(
    ("text", "usage", "expected"),
    [
        (None, Usage(prompt_tokens=10, completion_tokens=5), 15),
        ("total_tokens - cached_tokens * 0.9", Usage(prompt_tokens=100, cached_tokens=100), 10),
        ('model == "big" ? output_tokens * 2.0 : output_tokens', Usage(completion_tokens=3), 6),
        ("reasoning_tokens > 1.0 ? 7 : 8", Usage(reasoning_tokens=2), 7),
    ],
)
def test_a_cost_is_what_its_expression_says(text: str | None, usage: Usage, expected: float) -> None:
    assert TokenCost(text)(usage, "big") == pytest.approx(expected)


def test_a_cost_without_a_value_says_so() -> None:
    with pytest.raises(ArithmeticError):
        TokenCost("input_tokens / output_tokens")(Usage(prompt_tokens=1), "m")
    with pytest.raises(ArithmeticError, match="negative"):
        TokenCost("input_tokens - 2.0 * cached_tokens")(Usage(prompt_tokens=3, cached_tokens=2), "m")


@pytest.mark.requirement("S3-7")
def test_a_reactive_limit_reserves_nothing() -> None:
    chain = pipeline({"use": "infra-token-limit", "amount": "100/min", "charging": "reactive"})
    requests = [incoming() for _ in range(5)]
    assert [run(chain, each) for each in requests] == [None] * 5
    assert {each.charges[0].cost for each in requests} == {0}


@pytest.mark.parametrize("charging", ["reserve", "reactive"])
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, {"max_completion_tokens": 90}),
        ({"max_tokens": 500}, {"max_tokens": 90}),
        ({"max_completion_tokens": 500, "max_tokens": 9}, {"max_completion_tokens": 90}),
        ({"max_tokens": 20}, {}),
        ({"n": 3}, {"max_completion_tokens": 30}),
    ],
)
def test_an_answer_ends_where_its_tokens_do(
    charging: str, sent: dict[str, JsonValue], expected: dict[str, int]
) -> None:
    limit = {"use": "infra-token-limit", "amount": "100/min", "charging": charging, "on_exhaust": "truncate"}
    request = incoming({"model": "m", "messages": [{"role": "user", "content": "abcdefgh"}], **sent})
    assert run(pipeline(limit), request) is None
    # The prompt has 10 of the 100 tokens.
    assert request.prompt.tokens == 10
    assert {edit.field: edit.value for edit in request.body_edits.values()} == expected
    if expected:
        assert request.body.max_output_tokens == next(iter(expected.values()))


def test_an_api_without_a_limit_on_its_output_is_left_alone() -> None:
    limit = {"use": "infra-token-limit", "amount": "100/min", "on_exhaust": "truncate"}
    request = incoming({"input": "abcd"}, path="/v1/embeddings")
    assert run(pipeline(limit), request) is None
    assert request.body_edits == {}


def test_amounts_come_from_claims_and_a_claim_of_nothing_lets_nothing_through() -> None:
    limits = [
        {"use": "request-limit", "per": ["tenant"], "rate": "1/h", "claim": "rph", "tell": False},
        {"use": "concurrency-limit", "per": ["tenant"], "limit": 5, "claim": "open"},
    ]

    def ask(tenant: str, claims: JsonValue) -> Refusal | None:
        request = incoming(headers=by(tenant))
        chain = chains
        request.write(IDENTITY, {"limits": claims})
        return run(chain, request)

    chains = pipeline(IDENTIFIED, *limits)
    assert [ask("a", {"rph": 2}) for _ in range(2)] == [None, None]
    assert ask("a", {"rph": 2}) is not None
    assert ask("b", {"rph": ["3/h", "9/d"]}) is None
    suspended = ask("c", {"rph": 0})
    assert suspended is not None
    assert (suspended.code, suspended.retry_after_s) == ("insufficient_quota", None)
    full = ask("d", {"rph": 100, "open": 0})
    assert full is not None
    assert full.dropped_reason == "limit concurrency-limit"


@pytest.mark.parametrize(
    ("rate", "burst", "claim", "admitted"),
    [("50/s", 3, "1/h", 1), ("50/s", 3, "2/h", 2), ("50/s", 3, "9/h", 3), ("1/h", 3, "2/h", 3), ("50/s", 3, 1, 1)],
)
def test_a_claim_of_fewer_requests_than_a_burst_lowers_the_burst(
    rate: str, burst: int, claim: JsonValue, admitted: int
) -> None:
    limit = {"use": "request-limit", "per": ["tenant"], "rate": rate, "burst": burst, "claim": "rate"}
    chain = pipeline(IDENTIFIED, limit)
    outcomes: list[Refusal | None] = []
    for _ in range(burst + 1):
        request = incoming(headers=by("a"))
        request.write(IDENTITY, {"limits": {"rate": claim}})
        outcomes.append(run(chain, request))
    assert outcomes.count(None) == admitted
    assert outcomes[:admitted] == [None] * admitted


@pytest.mark.parametrize("claim", ["3/h, 1/d", ["3/h", "1/d"]])
def test_a_claim_of_several_rates_holds_with_commas_and_as_a_list(claim: JsonValue) -> None:
    chain = pipeline(IDENTIFIED, {"use": "request-limit", "per": ["tenant"], "rate": "9/h", "claim": "rate"})
    outcomes: list[Refusal | None] = []
    for _ in range(2):
        request = incoming(headers=by("a"))
        request.write(IDENTITY, {"limits": {"rate": claim}})
        outcomes.append(run(chain, request))
    assert outcomes[0] is None
    assert outcomes[1] is not None


@pytest.mark.parametrize("charging", ["reserve", "reactive"])
def test_a_quota_of_no_tokens_lets_nothing_through_wherever_it_is_set_and_however_it_is_charged(charging: str) -> None:
    limit = {"use": "token-limit", "per": ["tenant"], "claim": "tokens", "charging": charging}

    def ask(amount: str, claims: JsonValue) -> tuple[str | None, float | None] | None:
        request = incoming(headers=by("a"))
        request.write(IDENTITY, {"limits": claims})
        refusal = run(pipeline(IDENTIFIED, limit | {"amount": amount}), request)
        return None if refusal is None else (refusal.code, refusal.retry_after_s)

    nothing = ("insufficient_quota", None)
    assert ask("1000/min", {}) is None
    assert ask("1000/min", {"tokens": 0}) == nothing
    assert ask("1000/min", {"tokens": ["0/min", "5M/d"]}) == nothing
    assert ask("0/min", {}) == nothing
    assert ask("0/min", {"tokens": "1k/min"}) is None


class Stored(KeyStore):
    """One key."""

    def follow_keys(self) -> None:
        pass

    def explain_missing(self) -> str | None:
        return None

    def find_key(self, digest: str) -> KeyFacts | None:
        return stored_key(ApiKey(tenant="a", limits={"open": 2}).encode()) if digest == SHA256 else None

    def list_named(self, name: str) -> Collection[KeyFacts]:
        raise NotImplementedError(name)


SHA256 = hashlib.sha256(b"key").hexdigest()
OPEN: dict[str, object] = {"tenant": "a", "limits": {"open": 2}}
SAID_BY: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "a key of the configuration": ({"use": "api-key-auth", "keys": [OPEN | {"sha256": SHA256}]}, {"x-api-key": "key"}),
    "a stored key": ({"use": "api-key-auth", "stored": True}, {"x-api-key": "key"}),
    "the entry of those without a key": ({"use": "anonymous"} | OPEN, {}),
}


@pytest.mark.parametrize("name", SAID_BY)
def test_how_many_requests_are_open_at_once_is_taken_from_whatever_knows_the_client(name: str) -> None:
    entry, headers = SAID_BY[name]
    limit = {"use": "concurrency-limit", "per": ["tenant"], "limit": 1, "claim": "open"}
    chain = compile_pipeline(load({"preprocessing": [entry, limit]}), ports=Ports(Stored()))
    requests = [incoming(headers=headers) for _ in range(3)]
    assert [run(chain, each) is None for each in requests] == [True, True, False]
    assert not any(each.degraded for each in requests)


def test_half_a_request_is_no_claim_to_be_open() -> None:
    chain = pipeline(IDENTIFIED, {"use": "concurrency-limit", "per": ["tenant"], "limit": 1, "claim": "open"})
    wrong: list[JsonValue] = [2.5, -1.0, True, "2", math.inf, math.nan]
    for value in wrong:
        request = incoming(headers=by("a"))
        request.write(IDENTITY, {"limits": {"open": value}})
        run(chain, request)
        assert request.degraded == ["concurrency-limit: claim 'open' is no amount"]


@pytest.mark.parametrize("use", ["request-limit", "token-limit"])
def test_a_number_in_a_claim_is_the_first_amount_and_the_others_go_on_counting(use: str) -> None:
    amount = {"request-limit": "rate", "token-limit": "amount"}[use]
    chain = pipeline(IDENTIFIED, {"use": use, "per": ["tenant"], amount: ["7k/min", "90k/d"], "claim": "most"})
    request = incoming(headers=by("a"))
    request.write(IDENTITY, {"limits": {"most": 5000}})
    assert run(chain, request) is None
    assert [(each.amount, each.period_s) for each in request.charges[0].windows] == [(5000, 60), (90_000, 86_400)]


@pytest.mark.parametrize("wrong", ["many", True, -1, -0.5, 1e15, math.inf, math.nan, [], ["1/s", "2/s"]])
def test_a_claim_that_is_no_amount_leaves_the_configured_one_and_is_reported(wrong: JsonValue) -> None:
    chain = pipeline(IDENTIFIED, {"use": "request-limit", "per": ["tenant"], "rate": "1/h", "claim": "rph"})
    request = incoming(headers=by("a"))
    request.write(IDENTITY, {"limits": {"rph": wrong}})
    assert run(chain, request) is None
    assert request.charges[0].windows[0].amount == 1
    assert request.degraded == ["request-limit: claim 'rph' is no amount"]


def test_of_several_limits_the_tightest_is_reported() -> None:
    chain = pipeline(
        {"use": "infra-request-limit", "rate": "1000/s"},
        IDENTIFIED,
        {"use": "request-limit", "per": ["tenant"], "rate": ["100/s", "10/min"]},
        {"use": "request-limit", "name": "by-model", "per": ["model"], "rate": "500/s"},
        {"use": "token-limit", "per": ["tenant"], "amount": "1M/min"},
        {"use": "concurrency-limit", "per": ["tenant"], "limit": 2},
    )
    request = incoming(headers=by("a"))
    assert run(chain, request) is None
    assert told(request)["limit-requests"] == "10"
    assert told(request)["limit-tokens"] == "1000000"
    assert len(request.charges) == 5


@given(st.floats(0, 200_000))
def test_durations_read_back_as_what_was_meant(seconds: float) -> None:
    text, total = duration(seconds), 0.0
    if text.endswith("ms"):
        total = int(text[:-2]) / 1000
    else:
        hours, _, rest = text.rpartition("h")
        minutes, _, last = rest.rpartition("m")
        total = 3600 * int(hours or 0) + 60 * int(minutes or 0) + float(last[:-1])
    assert total * 1000 == pytest.approx(math.ceil(round(seconds * 1000, 3)), abs=0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50/s", Rate(50, 1)),
        ("200k/min", Rate(200_000, 60)),
        ("1.5M/d", Rate(1_500_000, 86400)),
        ("10 / 30s", Rate(10, 30)),
        ("0/s", Rate(0, 1)),
        ("3/100ms", Rate(3, 0.1)),
    ],
)
def test_rates_are_read_and_written_alike(text: str, expected: Rate) -> None:
    assert rate(text) == pytest.approx(expected)
    assert rate(str(rate(text))) == pytest.approx(expected)


@pytest.mark.parametrize("wrong", ["50", "50/m", "-1/s", "x/s", "1/0s", 5, None, "1/s/s", ["1/s", "2/s"], []])
def test_a_text_that_is_no_rate_is_refused_with_an_example(wrong: object) -> None:
    with pytest.raises(ValueError, match="rate"):
        rates(wrong)


WRONG = {
    "an unknown scope": ({"use": "request-limit", "per": ["user"], "rate": "1/s"}, "known: header:<name>, model"),
    "a limit by tenant before anybody is known": (
        {"use": "request-limit", "per": ["tenant"], "rate": "1/s"},
        "identity",
    ),
    "infrastructure by tenant": ({"use": "infra-token-limit", "per": ["tenant"], "amount": "1/s"}, "knows no identity"),
    "infrastructure by claim": ({"use": "infra-request-limit", "rate": "1/s", "claim": "x"}, "knows no identity"),
    "no amount": ({"use": "infra-token-limit"}, "amount"),
    "an unknown parameter": ({"use": "infra-request-limit", "rate": "1/s", "rates": "2/s"}, "did you mean 'rate'"),
    "a cost of text": ({"use": "infra-token-limit", "amount": "1/s", "cost": "model"}, "a cost is a number"),
    "a cost of integers": ({"use": "infra-token-limit", "amount": "1/s", "cost": "input_tokens * 4"}, "write 4.0"),
}


@pytest.mark.requirement("S3-6")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_limit_is_a_configuration_error_that_says_what_would_be_right(name: str) -> None:
    entry, words = WRONG[name]
    with pytest.raises(ConfigError, match=words):
        check(load({"preprocessing": [entry]}))


def test_the_expected_length_of_an_answer_follows_earlier_answers_to_the_tenant() -> None:
    lengths = OutputLengths()
    for number in range(200):
        lengths.learn_length("t", "m", 100 + number % 10)
    assert 100 <= (lengths.expected_tokens("t", "m") or 0) <= 131
    assert lengths.expected_tokens("u", "m") is None, "its own answers may be longer"
    for _ in range(5000):
        lengths.learn_length("t", "m", 1000)
    assert 1000 <= (lengths.expected_tokens("t", "m") or 0) <= 1200


def test_little_is_expected_of_answers_only_once_enough_are_known_to_be_certain() -> None:
    lengths = OutputLengths()
    for _ in range(50):
        lengths.learn_length("t", "m", 5)
    assert lengths.expected_tokens("t", "m") is None, "all of 50 are short when 95 % are in one case of 13"
    for _ in range(20):
        lengths.learn_length("t", "m", 5)
    assert lengths.expected_tokens("t", "m") is not None
    lengths.learn_length("t", "m", 1000)
    assert (lengths.expected_tokens("t", "m") or 0) >= 1000


def test_requests_after_short_answers_use_no_more_than_twice_the_amount() -> None:
    limiter = OwnBook()
    limit: dict[str, object] = {"use": "token-limit", "per": ["tenant"], "amount": "1000/min"}
    chain = compile_pipeline(load({"preprocessing": [IDENTIFIED, limit]}), ports=Ports(limiter))
    for _ in range(100):
        limiter.lengths.learn_length("t", "m", 2)
    short: dict[str, JsonValue] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
    requests = [incoming(short, headers=by("t")) for _ in range(40)]
    admitted = [request for request in requests if run(chain, request) is None]
    assert admitted[0].charges[0].cost < 20, "the answers were short"
    assert len(admitted) >= 10
    assert sum(request.prompt.tokens + 100 for request in admitted) <= 2000
    limiter.release_charges((charge for request in admitted for charge in request.charges), NOW_MS / 1000)
    assert run(chain, incoming(short, headers=by("t"))) is None, "what has ended may use nothing more"
