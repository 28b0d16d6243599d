"""Generations of the contracts understand each other or not."""

import pytest

from pointsman_contracts.generation import SPOKEN, Generations
from pointsman_contracts.presence import ServicePresence


@pytest.mark.parametrize(
    ("one", "other", "understood"),
    [((1, 1), (1, 1), True), ((1, 2), (2, 3), True), ((1, 1), (1, 4), True), ((1, 1), (2, 2), False)],
)
def test_two_understand_each_other_when_they_have_a_generation_in_common(
    one: tuple[int, int], other: tuple[int, int], understood: bool
) -> None:
    assert Generations(*one).is_compatible_with(Generations(*other)) == understood
    assert Generations(*other).is_compatible_with(Generations(*one)) == understood


def test_a_process_that_says_nothing_is_of_the_first_generation() -> None:
    beat = ServicePresence(service="s", instance="i", sequence=1, at_ms=0, version="0.1.0")
    assert beat.contracts == (1, 1)
    assert SPOKEN.oldest <= SPOKEN.newest
