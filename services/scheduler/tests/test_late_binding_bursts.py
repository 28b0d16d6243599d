"""Bursts that several schedulers share: how long each waits to hear of the others' part."""

import pytest

from pointsman_scheduler.domain.late_binding.bursts import GAP_MS, Bursts


def come(bursts: Bursts, at: float) -> None:
    """A burst, of which this scheduler gets two requests."""
    bursts.note_arrival(at)
    bursts.note_arrival(at)


def over_after(bursts: Bursts, at: float) -> float:
    """How long after a burst's last request it counts as over, among other schedulers."""
    bursts.note_arrival(at)
    return bursts.over_at(alone=False) - at


def test_the_pause_is_the_longest_until_something_is_heard_of_others() -> None:
    assert over_after(Bursts(), 0.0) == GAP_MS


def test_the_pause_comes_down_to_the_time_in_which_the_others_part_is_heard() -> None:
    bursts = Bursts()
    for burst in range(100):
        come(bursts, burst * 3000.0)
        bursts.note_peer_burst(burst * 3000.0 + 1.0)
    assert 1.0 < over_after(bursts, 300_000.0) < 2.0


def test_the_pause_leaves_room_for_the_spread_of_that_time() -> None:
    bursts = Bursts()
    for burst in range(200):
        come(bursts, burst * 3000.0)
        bursts.note_peer_burst(burst * 3000.0 + (0.6 if burst % 2 else 1.4))
    assert 1.4 < over_after(bursts, 600_000.0) < 4.0


def test_others_requests_that_are_heard_long_after_a_burst_are_no_part_of_it() -> None:
    bursts = Bursts()
    bursts.note_arrival(0.0)
    bursts.note_peer_burst(1000.0)
    assert over_after(bursts, 3000.0) == GAP_MS


def test_one_scheduler_alone_waits_for_nothing_of_others() -> None:
    alone, with_peers = Bursts(), Bursts()
    for burst in range(100):
        for bursts in (alone, with_peers):
            come(bursts, burst * 3000.0)
        with_peers.note_peer_burst(burst * 3000.0 + 4.0)
    assert alone.over_at() == with_peers.over_at() == pytest.approx(297_000.5)
