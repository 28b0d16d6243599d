"""A plugin that was too slow several times is left out for a while, and tried again."""

from collections.abc import Iterator
from itertools import chain, repeat

from pointsman_plugins.stopwatch import Stopwatch, TimedParams


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_plugin_that_stays_slow_is_left_out_and_tried_again() -> None:
    clock = Clock()
    watch = Stopwatch(TimedParams(of="x", most=0.001, times=2, pause=5.0), clock)
    took: Iterator[float] = chain([0.002, 0.0005, 0.002, 0.002, 0.002], repeat(0.0001))

    def work() -> str:
        clock.now += next(took)
        return "done"

    # One slow call is forgiven by a fast one; two in a row aren't.
    assert [watch.call(work) for _ in range(5)] == ["done"] * 4 + [None]
    assert watch.words == "left out: took 2000 µs"
    clock.now += 5.0
    assert watch.call(work) == "done"  # slow: one trial suffices
    assert watch.call(work) is None
    clock.now += 5.0
    assert [watch.call(work) for _ in range(3)] == ["done"] * 3
    assert watch.words == "100 µs"


def test_a_plugin_that_fails_is_timed_too() -> None:
    clock = Clock()
    watch = Stopwatch(TimedParams(of="x", most=0.001, times=1), clock)

    def fail() -> None:
        clock.now += 1.0
        raise KeyError

    try:
        watch.call(fail)
    except KeyError:
        assert watch.call(fail) is None
