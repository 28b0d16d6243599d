"""Deadlines are read by the clock of the edge that set them, whatever the host's own clock shows."""

import time
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from pointsman_runtime.bus import message_headers
from pointsman_runtime.bus.edge_clocks import MOST, STEP_MS, WINDOW_MS, EdgeClocks, Reading

HOUR_MS = 3_600_000


class Host:
    """One host: its clock is `ahead_ms` ahead of the true time, and counts from its own start."""

    def __init__(self, true_ms: list[int], ahead_ms: int, started_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self.clocks: Final = EdgeClocks(
            lambda: (true_ms[0] + self.ahead_ms) * 1_000_000, lambda: (true_ms[0] - started_ms) * 1_000_000
        )


def test_a_header_says_what_it_was_given() -> None:
    reading = Reading("frontend-1", 2, 1_700_000_000_000)
    assert message_headers.find_clock(message_headers.build("journey.v1", clock=reading)) == reading


@given(st.binary(max_size=60))
def test_no_header_is_too_odd_to_be_read(value: bytes) -> None:
    reading = message_headers.find_clock(b"NATS/1.0\r\nPm-Clock: " + value + b"\r\n\r\n")
    assert reading is None or (reading.at_ms >= 0 and reading.setting >= 0 and reading.edge)


skews = st.integers(-30 * 24 * HOUR_MS, 30 * 24 * HOUR_MS)


@given(
    edge_ahead=skews,
    stage_ahead=skews,
    steps=st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 300)), min_size=1, max_size=40),
    late=st.integers(0, 20_000),
)
def test_a_message_is_past_its_deadline_by_the_time_that_it_was_under_way_beyond_the_quickest(
    edge_ahead: int, stage_ahead: int, steps: list[tuple[int, int]], late: int
) -> None:
    true_ms = [1_700_000_000_000]
    edge, stage = Host(true_ms, edge_ahead, 1_600_000_000_000), Host(true_ms, stage_ahead, 1_650_000_000_000)
    began, quickest = true_ms[0], min(transit for _, transit in steps)

    def send(transit_ms: int) -> bool:
        """Whether a message of a budget of a second is past its deadline at its arrival."""
        reading = edge.clocks.read_own_clock("edge")
        true_ms[0] += transit_ms
        return stage.clocks.is_past(reading.at_ms + 1_000, reading)

    for pause, transit in steps:
        true_ms[0] += pause
        assert not send(transit)
    if true_ms[0] - began <= WINDOW_MS:
        assert send(late) == (late - quickest > 1_000)


@given(edge_ahead=skews, stage_ahead=skews, step=st.integers(-HOUR_MS, HOUR_MS))
def test_a_clock_that_is_set_under_way_makes_no_message_late(edge_ahead: int, stage_ahead: int, step: int) -> None:
    true_ms = [1_700_000_000_000]
    edge, stage = Host(true_ms, edge_ahead, 1_600_000_000_000), Host(true_ms, stage_ahead, 1_650_000_000_000)
    for host in (None, edge, stage):
        if host is not None:
            host.ahead_ms += step
        reading = edge.clocks.read_own_clock("edge")
        true_ms[0] += 1
        assert not stage.clocks.is_past(reading.at_ms + 500, reading)
        assert abs(stage.clocks.tell_time("edge") - (reading.at_ms + 1)) <= STEP_MS + 1


def test_a_stage_that_hands_a_message_on_tells_the_next_one_the_time_of_its_edge() -> None:
    true_ms = [1_700_000_000_000]
    edge, first, second = (Host(true_ms, ahead, ahead) for ahead in (0, HOUR_MS, -HOUR_MS))
    sent = edge.clocks.read_own_clock("edge")
    first.clocks.learn_time(sent)
    true_ms[0] += 700
    handed_on = first.clocks.read_clock("edge")
    assert handed_on == sent._replace(at_ms=sent.at_ms + 700)
    assert not second.clocks.is_past(sent.at_ms + 1_000, handed_on)
    assert second.clocks.is_past(sent.at_ms + 699, handed_on)


def test_a_slow_message_is_forgotten_as_the_quickest_after_two_windows() -> None:
    true_ms = [1_700_000_000_000]
    stage = Host(true_ms, 0, 0)
    stage.clocks.learn_time(Reading("edge", 0, true_ms[0]))
    for _ in range(3):
        # Its host was stopped for 5 s, which its clock doesn't know.
        true_ms[0] += WINDOW_MS + 1
        stage.clocks.learn_time(Reading("edge", 0, true_ms[0] - 5_000))
    assert stage.clocks.tell_time("edge") == true_ms[0] - 5_000


def test_without_a_reading_the_hosts_own_clock_counts() -> None:
    now_ms = time.time_ns() // 1_000_000
    clocks = EdgeClocks()
    assert clocks.is_past(now_ms - 1_000, None)
    assert not clocks.is_past(now_ms + 10_000, None)
    assert not clocks.is_past(None, None)


def test_an_edge_of_the_process_is_read_by_its_own_clock_whatever_others_say() -> None:
    clocks = EdgeClocks()
    own = clocks.read_own_clock("edge")
    assert abs(clocks.learn_time(own._replace(at_ms=own.at_ms + HOUR_MS)) - own.at_ms) < 10_000


def test_clocks_of_many_edges_are_bounded() -> None:
    clocks = EdgeClocks()
    for number in range(MOST + 10):
        clocks.learn_time(Reading(f"edge-{number}", 0, 1_000))
    assert abs(clocks.tell_time("edge-0") - time.time_ns() // 1_000_000) < 10_000
    assert clocks.tell_time(f"edge-{MOST}") < 60_000
