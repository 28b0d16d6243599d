"""Each end in the stream charges a budget once, whatever was read before."""

from collections.abc import Sequence
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.batch import make_batch_id
from pointsman_contracts.identity import Identity
from pointsman_contracts.limits import SHARDS
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_limits.domain.budgets.charging import BudgetCharging, End
from pointsman_limits.domain.budgets.ledger import BudgetLedger
from pointsman_limits.domain.budgets.scope import BudgetScopes

NOW: Final = 1_800_000_000.0
NAME: Final = "monthly"
SCOPES: Final = BudgetScopes(NAME, ("tenant",))
SCOPE, SHARD = SCOPES.values_of({"tenant": "acme"}, "m")


def body(number: int, cost: int | None, line: int | None = None) -> bytes:
    batch = "" if line is None else make_batch_id("batch_", 1000, "x")
    return ResponseCompleted(
        request_id=str(number) if line is None else f"{batch}-{line}-1",
        source="edge-1",
        sequence=number,
        at_ms=round(NOW * 1000),
        pool="p",
        status=200,
        outcome="ok",
        usage=Usage(prompt_tokens=1),
        identity=Identity(tenant="acme", batch=batch),
        served="m",
        cost_nanos=cost,
    ).encode()


def charging(last: int = 0) -> BudgetCharging:
    made = BudgetCharging()
    made.scopes = {NAME: SCOPES}
    made.follow_stream("first", last)
    return made


@given(st.lists(st.integers(min_value=1, max_value=6), max_size=20), st.integers(min_value=1, max_value=5))
def test_each_end_is_charged_once_however_often_the_stream_has_it(numbers: Sequence[int], batch: int) -> None:
    reader, ledgers = charging(), {shard: BudgetLedger() for shard in (SHARD, (SHARD + 1) % SHARDS)}
    reader.seek_place(ledgers.values())
    ends = [End(place, body(number, number)) for place, number in enumerate(numbers, start=1)]
    costs = [
        cost
        for first in range(0, len(ends), batch)
        for cost in reader.charge_ends(ends[first : first + batch], ledgers, NOW).costs
    ]
    assert sum(amount for _, amount in costs) == sum(set(numbers))
    assert all(ledger.spent_to == len(ends) for ledger in ledgers.values())


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_a_shard_that_comes_later_is_charged_from_its_own_place(taken: Sequence[bool]) -> None:
    reader, ends = charging(), [End(place, body(place, 1)) for place in range(1, 8)]
    first = {(SHARD + 1) % SHARDS: BudgetLedger()}
    reader.seek_place(first.values())
    reader.charge_ends(ends, first, NOW)
    late = BudgetLedger()
    late.begin_counting(3, "first")
    charged = 0
    for again in taken:
        both = {**first, SHARD: late}
        reader.seek_place(both.values())
        following = [end for end in ends if end.sequence > reader.position]
        charged += sum(amount for _, amount in reader.charge_ends(following, both, NOW).costs)
        assert charged == 4, f"the four ends after its place, once ({again=})"


@given(st.lists(st.integers(min_value=0, max_value=3), max_size=12), st.integers(min_value=0, max_value=12))
def test_an_attempt_of_a_line_is_charged_once_however_often_it_was_repeated(lines: Sequence[int], restart: int) -> None:
    """Also by a process that takes the shard over between two of its ends."""
    ends = [End(place, body(place, 10**line, line)) for place, line in enumerate(lines, start=1)]
    ledger = BudgetLedger()
    reader = charging()
    reader.seek_place([ledger])
    costs = reader.charge_ends(ends[:restart], {SHARD: ledger}, NOW).costs
    other = charging(last=len(ends))
    other.seek_place([ledger])
    other.remember_ends(end for end in ends if end.sequence <= other.position)
    following = [end for end in ends if end.sequence > other.position]
    costs += other.charge_ends(following, {SHARD: ledger}, NOW).costs
    assert sum(amount for _, amount in costs) == sum(10**line for line in set(lines))


def test_a_stream_that_was_created_anew_is_read_from_its_beginning() -> None:
    reader = charging(last=40)
    assert reader.position == 40
    reader.follow_stream("first", 50)
    assert reader.position == 40
    reader.follow_stream("second", 7)
    assert reader.position == 0


def test_ends_without_a_price_and_broken_ends_are_reported() -> None:
    reader, ledger = charging(), BudgetLedger()
    reader.seek_place([ledger])
    broken = End(2, b"{}")
    charged = reader.charge_ends([End(1, body(1, None)), broken], {SHARD: ledger}, NOW)
    assert charged == ([], ["m"], [broken])
