"""A new unit of limits is a plugin's own word: how it is counted stays one of three ways."""

import pytest

from pointsman_contracts.limits import LimitWindow
from pointsman_contracts.message import fields_of, read_fields
from pointsman_limits.domain.limits.counter import counter_of, window_name
from pointsman_preprocessor.plugins.limit import describe

IMAGES = LimitWindow(unit="tokens", measure="images", amount=3, period_s=60)


def test_a_measure_has_counts_of_its_own() -> None:
    assert (window_name("tokens", 60.0, ""), window_name("tokens", 60.0, "images")) == ("tokens/60", "tokens/60/images")


def test_a_measure_is_counted_as_its_unit_says() -> None:
    counter = counter_of("tokens/60/images")
    counter.add_cost(IMAGES, 3, now=0.0)
    assert counter.seconds_until_room(IMAGES, 1, 0.0, reactive=False) == pytest.approx(60.0, abs=1.5)


@pytest.mark.parametrize(
    ("window", "words"),
    [
        (IMAGES, "3 images in 60 s"),
        (LimitWindow(unit="concurrency", amount=2), "2 requests at the same time"),
        (LimitWindow(unit="concurrency", measure="jobs", amount=2), "2 jobs at the same time"),
    ],
)
def test_a_client_reads_what_is_counted(window: LimitWindow, words: str) -> None:
    assert describe(window) == words


def test_a_reader_of_an_earlier_version_still_reads_the_window() -> None:
    old = {name: value for name, value in fields_of(IMAGES).items() if name != "measure"}
    assert read_fields(LimitWindow, old).unit == "tokens"
