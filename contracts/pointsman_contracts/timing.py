"""How often processes and workers report, and after which silence they count as silent, old or gone.

Senders and readers must agree on these times, so they are written here and nowhere else. Four intervals are settings of
every process; all other times are multiples of them.
"""

from typing import Final, TypedDict

BEAT_S: Final = 0.2
REPORT_S: Final = 0.4
SNAPSHOT_S: Final = 1.0
ANNOUNCE_S: Final = 2.0

REPORT_GAP_S: Final = 0.05
"""Shortest time between two load reports of a worker."""
SNAPSHOT_GAP_S: Final = 0.2
"""Shortest time between two snapshots of a pool."""
ROLLOUT_LOOK_S: Final = 0.1
"""Between two looks of an edge whether every stage runs a newer configuration revision."""
LATEST_S: Final = 60.0
"""Longest interval that may be set."""


class Intervals(TypedDict):
    """Intervals that operators may set, in seconds."""

    beat_s: float
    report_s: float
    snapshot_s: float
    announce_s: float


class Times:
    """All times, in seconds."""

    __slots__ = (
        "announce_s",
        "announced_within_s",
        "beat_s",
        "load_aged_s",
        "load_worthless_s",
        "loads_within_s",
        "report_s",
        "service_lost_s",
        "service_silent_s",
        "snapshot_old_s",
        "snapshot_s",
        "worker_gone_s",
        "worker_silent_s",
    )

    def __init__(self, intervals: Intervals) -> None:
        self.set(intervals)

    def set(self, intervals: Intervals) -> None:
        """Derive all times from these intervals. A process calls it once, before it makes anything else.

        Raises ValueError, and changes nothing, when the intervals don't fit together (`problem`).
        """
        wrong = problem(**intervals)
        if wrong is not None:
            raise ValueError(wrong)
        beat_s, report_s = intervals["beat_s"], intervals["report_s"]
        snapshot_s, announce_s = intervals["snapshot_s"], intervals["announce_s"]
        self.beat_s = beat_s
        """Each instance of a service beats this often, from the loop that does its work."""
        self.service_silent_s = 3 * beat_s
        """An instance that isn't heard of for this long gets no more messages if another instance can take them."""
        self.service_lost_s = 7.5 * beat_s
        """A silent instance without a replica is still used for this long, because it may only be short of CPU. An edge
        whose hop budget is longer waits for that long."""
        self.report_s = report_s
        """Each worker's load is reported on change, and at least this often. So are the events of its KV cache."""
        self.loads_within_s = 1.5 * report_s
        """Every worker has reported its load within this time."""
        self.load_aged_s = 1.25 * report_s
        """A load report loses weight from this age on,"""
        self.load_worthless_s = 7.5 * report_s
        """and weighs nothing at this age."""
        self.worker_silent_s = 3 * report_s
        """A worker that isn't heard of for this long is silent: out of decisions while other workers are heard."""
        self.snapshot_s = snapshot_s
        """Each pool's snapshot is published on change, and at least this often."""
        self.snapshot_old_s = 3 * snapshot_s
        """A pool whose last snapshot is older has an unknown state."""
        self.announce_s = announce_s
        """Each agent announces its worker this often, and renews the worker's entry in the bucket."""
        self.announced_within_s = 1.25 * announce_s
        """Every agent has announced its worker within this time."""
        self.worker_gone_s = 3 * announce_s
        """A worker that isn't heard of for this long is gone. Also the TTL of its entry in the bucket."""


def problem(*, beat_s: float, report_s: float, snapshot_s: float, announce_s: float) -> str | None:
    """Why these intervals don't fit together, with the names of settings; None when they do."""
    shortest = {"beat_s": 0.05, "report_s": 2 * REPORT_GAP_S, "snapshot_s": SNAPSHOT_GAP_S, "announce_s": 0.5}
    given = {"beat_s": beat_s, "report_s": report_s, "snapshot_s": snapshot_s, "announce_s": announce_s}
    for name, seconds in given.items():
        if not shortest[name] <= seconds <= LATEST_S:
            return f"{name}: {seconds:g} s is not between {shortest[name]:g} s and {LATEST_S:g} s"
    if announce_s < report_s:
        least = f"report_s ({report_s:g} s)"
        return f"announce_s: {announce_s:g} s is less than {least}; a worker must be silent before it is gone"
    return None


DEFAULTS: Final = Intervals(beat_s=BEAT_S, report_s=REPORT_S, snapshot_s=SNAPSHOT_S, announce_s=ANNOUNCE_S)
TIMES: Final = Times(DEFAULTS)
"""The times of this process. Read at use, never copied into a constant of a module."""
