"""A process that stood still is known, and no other is blamed."""

import time

from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.timing import TIMES
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.telling.process import Process
from pointsman_testing import eventually
from pointsman_testing.attendance import Attendance
from pointsman_testing.memory_nats import MemoryNats


async def test_an_instance_that_stops_beating_stood_still_and_one_that_leaves_or_was_stopped_did_not() -> None:
    nats = MemoryNats()
    bus = Bus(nats.link(), Process("observer", "observer-1"))
    attendance = Attendance(bus)
    bus.open()
    began = time.monotonic()
    for instance, ready in (("vm-1-a", True), ("vm-2-b", True), ("vm-3-c", False)):
        beat = ServicePresence(service="s", instance=instance, sequence=1, at_ms=0, version="1", ready=ready)
        bus.publish(beat, beat.service, beat.instance)
    await eventually(lambda: attendance.stood_still(began, time.monotonic()) == ["vm-1-a", "vm-2-b"])
    assert attendance.stood_still(began, time.monotonic(), 2) == ["vm-1-a"]
    assert attendance.stood_still(began - 60, began - 30) == []
    assert time.monotonic() - began > 2 * TIMES.beat_s
    await bus.close()
