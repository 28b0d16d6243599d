"""Reservations as they are written for peers of every version."""

import pytest

from pointsman_contracts.peers import read_reservations
from pointsman_contracts.scheduling import Reservations
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.reservations import written
from pointsman_scheduler.testing import Bench


@pytest.mark.parametrize("op", ["reserve", "confirm", "release", "retract"])
@pytest.mark.parametrize(
    "facts",
    [
        {},
        {
            "leg": "prefill", "edge": "edge-1", "attempt": 2, "prompt_tokens": 9, "uncached_tokens": 8,
            "output_tokens": 7, "block_tokens": 32, "blocks": bytes(range(248, 256)), "blocks_precise": True,
            "lora": "l", "session": "s", "rank": 0, "streamed": False,
        },
    ],
    ids=["defaults", "every field"],
)  # fmt: skip
def test_a_peer_of_any_version_reads_every_field_of_a_change(op: str, facts: dict[str, object]) -> None:
    bench = Bench()
    bench.join("w0")
    hold = Hold("r", next(iter(bench.pool.fleet)), 1.0, **facts)  # pyright: ignore[reportArgumentType] - named by the test
    payload = written("llama", "scheduler-1", 3, 5, [(op, (hold, hold))], None)
    change = hold.change(op)
    assert Reservations.decode(payload) == Reservations(
        pool="llama", scheduler="scheduler-1", sequence=3, at_ms=5, changes=(change, change)
    )
    read = read_reservations(payload).changes[0]
    assert all(getattr(read, name) == value for name, value in change)


def test_a_scheduler_without_waiting_requests_says_so() -> None:
    assert Reservations.decode(written("llama", "scheduler-1", 3, 5, [], [])).unbound == ()
