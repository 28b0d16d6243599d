"""Amounts of money are exact, whatever is written."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.money import NANOS, dollars, nanos

AMOUNTS = st.integers(-(10**18), 10**18)


@given(AMOUNTS)
def test_an_amount_that_is_written_is_read_again_as_it_was(amount: int) -> None:
    text = dollars(amount)
    assert nanos(text) == amount
    assert "e" not in text.lower()
    assert Decimal(text) * NANOS == amount


@given(AMOUNTS, st.integers(2, 9))
def test_fewer_decimals_are_rounded_by_half_of_the_last_one_at_most(amount: int, places: int) -> None:
    assert abs(nanos(dollars(amount, places)) - amount) <= 10 ** (9 - places) // 2


def test_amounts_read_as_people_write_them() -> None:
    assert [dollars(each) for each in (0, 4, 12_500_000_000, -5_000)] == ["0.00", "0.000000004", "12.50", "-0.000005"]
    assert dollars(1_999_999_999, 2) == "2.00"
    assert (nanos("12.50"), nanos(0.1), nanos(Decimal("0.0000000005"))) == (12_500_000_000, 100_000_000, 0)
    for wrong in ("many", "", "inf", "NaN"):
        with pytest.raises(ValueError, match="not an amount of money"):
            nanos(wrong)
