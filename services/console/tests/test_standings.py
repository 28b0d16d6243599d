"""Limits and budgets as they stand."""

import pytest

from pointsman_console.domain.standings import standings
from pointsman_contracts.limits import AccountState, ChargeState, CounterState, LimitShard
from pointsman_contracts.message import read_fields
from pointsman_contracts.money import NANOS
from pointsman_runtime.configuring.config_text import parse

NOW = 20_000.5 * 86400
TODAY = 20_000
CONFIG = parse(
    """
pools: {p: {models: [m], discovery: agents}}
preprocessing:
  - {use: anonymous, tenant: acme}
  - {use: request-limit, per: [tenant], rate: 50/s}
  - {use: token-limit, per: [tenant, model], amount: [1k/min]}
  - {use: concurrency-limit, per: [tenant], limit: 8}
  - {use: budget, name: monthly, per: [tenant], amount: [10/7d, 4/d]}
"""
)


def shard(**parts: object) -> LimitShard:
    return read_fields(LimitShard, {"shard": 1, "keeper": "k", "at_ms": 0, **parts})


def test_tokens_of_the_window_count_and_older_ones_dont() -> None:
    slot = int(NOW)  # a slot of a minute's window is a second
    slots = (999.0, 5.0, 250.0, 245.0)
    state = CounterState(window="tokens/60", limit="token-limit", scope="4:acme1:m", first_slot=slot - 61, slots=slots)
    [row], count = standings([shard(counters=[state])], CONFIG, NOW)
    assert (row.limit, row.unit, row.period) == ("token-limit", "tokens", "min")
    assert dict(row.scope) == {"tenant": "acme", "model": "m"}
    assert (row.used, row.amount, row.used_share, count) == (495.0, 1000.0, 0.495, 1)


def test_requests_are_counted_by_what_is_ahead_of_the_rate() -> None:
    state = CounterState(window="requests/1", limit="request-limit", scope="4:acme", due=NOW + 0.4, each_s=0.02)
    [row], _ = standings([shard(counters=[state])], CONFIG, NOW)
    assert (row.used, row.amount) == (pytest.approx(20.0, rel=1e-3), 50.0)


def test_open_requests_are_those_that_are_charged() -> None:
    charges = [
        ChargeState(
            edge="e", request_id=f"r-{number}", limit="concurrency-limit", scope="4:acme", windows=("concurrency/0",),
            cost=1.0, at=NOW, until=NOW + 60,
        )
        for number in range(3)
    ]  # fmt: skip
    empty = CounterState(window="concurrency/0", limit="concurrency-limit", scope="4:acme")
    [row], _ = standings([shard(charges=charges, counters=[empty])], CONFIG, NOW)
    assert (row.unit, row.used, row.amount) == ("open requests", 3.0, 8.0)


def test_a_budget_has_a_row_for_each_period_with_what_was_spent_in_it() -> None:
    days = {TODAY: 3 * NANOS, TODAY - 6: 2 * NANOS, TODAY - 7: 100 * NANOS}
    account = AccountState(limit="monthly", scope="4:acme", days=days)
    found, _ = standings([shard(accounts=[account])], CONFIG, NOW)
    assert [(row.period, row.used, row.amount) for row in found] == [("d", 3.0, 4.0), ("7d", 5.0, 10.0)]


def test_the_fullest_come_first_and_a_limit_that_has_gone_has_no_amount() -> None:
    gone = CounterState(window="tokens/60", limit="earlier", scope="", first_slot=int(NOW), slots=(7.0,))
    full = CounterState(window="tokens/60", limit="token-limit", scope="1:a1:m", first_slot=int(NOW), slots=(1500.0,))
    found, _ = standings([shard(counters=[gone, full])], CONFIG, NOW)
    assert [(row.limit, row.used_share) for row in found] == [("token-limit", 1.5), ("earlier", 0.0)]
    assert found[1].amount is None
