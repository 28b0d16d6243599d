"""`budget` as a processor: whose money it counts, what it tells, and what happens when nothing is left."""

from contextlib import suppress
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.money import NANOS
from pointsman_core.budget_amount import Amount, amount, amounts
from pointsman_core.config import ConfigError, load
from pointsman_core.refusal import Refusal
from pointsman_limits.domain.budgets.account import day_of
from pointsman_limits.domain.budgets.scope import BudgetScopes
from pointsman_limits.domain.budgets.spending import spending
from pointsman_limits.domain.limits.limiter import OwnBook
from pointsman_plugins.preprocessing import IDENTITY, Incoming, Ports
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.domain.pipeline import Pipeline
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_testing import builders

NOW_MS = 1_795_417_200_000
"""2026-11-23T07:00:00Z."""
IDENTIFIED = {"use": "identity-headers"}
MODELS = {
    "large": {"pool": "own", "cost": {"input": 10, "output": 100}},
    "small": {"pool": "own", "cost": {"input": 1, "output": 10}},
    "free": {"pool": "own"},
}


class Scene:
    """A pipeline with a book of its own."""

    def __init__(self, **budget: object) -> None:
        entry: dict[str, object] = {"use": "budget", "expected_output": 100, "amount": "1/month"}
        document: dict[str, object] = {
            "pools": {"own": {}},
            "models": MODELS,
            "preprocessing": [IDENTIFIED, entry | budget],
        }
        self.limiter = OwnBook()
        self.pipeline: Pipeline = compile_pipeline(load(document), ports=Ports(self.limiter))

    def spend(self, dollars: str, scope: str = "4:acme", limit: str = "budget") -> None:
        amount = int(Decimal(dollars) * NANOS)
        self.limiter.book.budgets.spend_cost(limit, scope, amount, day_of(NOW_MS / 1000), NOW_MS / 1000)

    def send(self, model: str = "large", tenant: str = "acme", **body: JsonValue) -> tuple[Incoming, Refusal | None]:
        document = {"model": model, "messages": [{"role": "user", "content": "x" * 388}], **body}
        envelope = builders.preprocess_request(
            path="/v1/chat/completions",
            received_ms=NOW_MS,
            deadline_ms=NOW_MS + 60_000,
            headers={"x-pointsman-tenant": tenant, "x-pointsman-subject": "ci"},
        )
        request = Incoming(envelope, parse(envelope.path, orjson.dumps(document)), read_headers(envelope.headers))
        try:
            assert self.pipeline.run(request) is None
        except Refusal as refusal:
            return request, refusal
        return request, None


def told(request: Incoming) -> dict[str, str | None]:
    return {name.removeprefix("x-pointsman-budget-"): edit.value for name, edit in request.answer_headers.items()}


@pytest.mark.requirement("BUDGET-3")
def test_a_spent_budget_ends_requests_with_402_and_the_time_of_its_reset() -> None:
    scene = Scene()
    request, refusal = scene.send()
    assert refusal is None
    assert told(request) == {"limit": "1.00", "remaining": "1.00", "reset": "2026-12-01T00:00:00Z"}
    scene.spend("0.995")
    _, refusal = scene.send()
    assert refusal is not None
    assert (refusal.status, refusal.type, refusal.code) == (402, "insufficient_quota", "insufficient_quota")
    assert refusal.message == (
        "Budget budget (1.00 dollars a month per tenant) is exhausted: 0.995 dollars spent. It has room for this "
        "request again on 2026-12-01T00:00:00Z."
    )
    assert refusal.retry_after_s == 7 * 86400 + 17 * 3600
    assert scene.send(tenant="other")[1] is None, "another tenant has a budget of its own"
    assert scene.send("free")[1] is None, "what costs nothing passes"


@pytest.mark.requirement("BUDGET-3")
def test_a_cheaper_model_serves_while_it_fits() -> None:
    scene = Scene(fallback={"large": ["small"], "*": "free"})
    scene.spend("0.995")
    request, refusal = scene.send()
    assert refusal is None
    assert (request.model, request.verdicts[-1].note) == ("small", "spent for large; small serves in its place")
    assert told(request)["warning"] == "budget: spent for large; small serves"
    scene.spend("0.004")
    assert scene.send("small")[0].model == "free"
    _, refusal = scene.send()
    assert refusal is not None
    assert refusal.status == 402, "large falls back to small alone"


def test_a_budget_reserved_by_running_requests_is_worth_another_try() -> None:
    scene = Scene(amount="0.10/d")
    for _ in range(3):
        assert scene.send(max_tokens=400)[1] is None
    _, refusal = scene.send(max_tokens=400)
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (429, "rate_limit_exceeded", 1)
    assert "reserved by running requests" in refusal.message


def test_the_error_for_a_request_over_the_whole_budget_says_so() -> None:
    _, refusal = Scene(amount="0.001/d").send()
    assert refusal is not None
    assert refusal.status == 402
    assert "more than the whole budget" in refusal.message


def test_a_soft_budget_warns_in_a_header_and_lets_pass() -> None:
    scene = Scene(soft="80%", hard=False)
    assert "warning" not in told(scene.send()[0])
    scene.spend("1.50")
    request, refusal = scene.send()
    assert refusal is None
    assert told(request)["warning"] == "budget: 1.50 of 1.00 dollars a month is spent"


def test_an_identity_may_have_an_amount_of_its_own_and_others_none() -> None:
    scene = Scene(amount=None, claim="budget", per=["key"])
    request, _ = scene.send()
    assert request.charges == []
    request.attributes[IDENTITY.name] = {"tenant": "acme", "key": "ci-1", "limits": {"budget": "0.001/d"}}
    budget = scene.pipeline.processors[-1]
    with pytest.raises(Refusal, match=r"more than the whole budget budget \(0\.001 dollars a day per key\)"):
        budget.process(request)
    request.attributes[IDENTITY.name] = {"key": "ci-1", "limits": {"budget": 7}}
    with pytest.raises(Exception, match="the claim 'budget' is no amount"):
        budget.process(request)


def test_a_model_without_a_price_is_refused_where_that_is_wanted() -> None:
    _, refusal = Scene(unpriced="refuse").send("free")
    assert refusal is not None
    assert (refusal.status, refusal.code) == (403, "model_without_price")
    assert Scene(unpriced="refuse").send("auto")[1] is None, "a selector's choice is held at the dearest price"


def test_a_reservation_is_what_the_request_may_cost_at_most() -> None:
    scene = Scene()
    request, _ = scene.send(max_tokens=400, n=2)
    [charge] = request.charges
    assert charge.budget is not None
    prompt = request.prompt.tokens * 10_000
    assert (charge.budget.expected, charge.budget.at_most) == (prompt + 200 * 100_000, prompt + 800 * 100_000)
    scene.limiter.release_charges(request.charges, NOW_MS / 1000)
    assert scene.limiter.book.budgets.open == 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("50/month", Amount(50 * NANOS, None)),
        ("$2.50/d", Amount(2_500_000_000, 1)),
        ("100 / 7d", Amount(100 * NANOS, 7)),
        ("0.000000001/30 days", Amount(1, 30)),
    ],
)
def test_amounts_are_read_as_people_write_them(text: str, found: Amount) -> None:
    assert amount(text) == found


@given(st.text(max_size=20) | st.integers() | st.lists(st.just("1/d"), max_size=3))
def test_a_text_that_is_no_amount_is_refused_with_words(value: object) -> None:
    with suppress(ValueError):
        assert amounts(value)


@pytest.mark.parametrize(
    "wrong",
    [{"amount": "50/week"}, {"amount": None}, {"per": ["header:x"]}, {"soft": "120%"}, {"fallback": {"large": "tiny"}}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_budget_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"preprocessing\.1"):
        Scene(**wrong)


@given(st.lists(st.text(max_size=10), min_size=3, max_size=3))
def test_a_scope_is_the_same_before_a_request_and_after_it(values: list[str]) -> None:
    scopes = BudgetScopes("b", ("tenant", "key", "model"))
    identity: dict[str, JsonValue] = {"tenant": values[0], "key": values[1], "subject": "s", "limits": {}}
    text, shard = scopes.values_of(identity, values[2])
    assert scopes.values_of({"tenant": values[0], "subject": "s", "key": values[1]}, values[2]) == (text, shard)
    assert scopes.parse_scope(text)["model"] == values[2].lstrip("\0")


def test_an_end_of_an_earlier_version_is_spent_by_its_dollars() -> None:
    body = {"source": "e", "request_id": "r", "at_ms": NOW_MS, "cost": 0.1, "usage": {"prompt_tokens": 1}}
    assert spending(orjson.dumps(body)).amount == 100_000_000
    assert spending(orjson.dumps({**body, "cost_nanos": 5})).amount == 5
    assert spending(orjson.dumps({**body, "cost": None})).amount is None
    with pytest.raises(ValueError, match="no end"):
        spending(b"{}")
