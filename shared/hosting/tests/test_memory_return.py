"""Memory that goes back to the system."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from pointsman_hosting.memory_return import GROWN_BYTES, MemoryReturn, glibc_trim, resident_bytes

MIB = 2**20
LARGE_BODIES = """
import threading
from pointsman_hosting.memory_return import MemoryReturn, resident_bytes

memory = MemoryReturn()
before = resident_bytes()

def read() -> None:
    for _ in range(4):
        body = b"x" * (20 * 2**20)
        del body

threads = [threading.Thread(target=read) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
many = ["word " * 400 for _ in range(20_000)]
del many
memory.return_if_grown().join()
print(resident_bytes() - before)
"""


def sizes(*mib: int) -> Iterator[int]:
    yield from (each * MIB for each in mib)


def test_a_process_that_has_grown_gives_memory_back() -> None:
    told, trims = sizes(100, 90, 94, 100, 91), list[int]()
    memory = MemoryReturn(lambda: next(told), lambda: trims.append(1))
    first = memory.return_if_grown()
    assert first is not None
    first.join()
    assert memory.return_if_grown() is None
    second = memory.return_if_grown()
    assert second is not None
    second.join()
    assert trims == [1, 1]
    assert GROWN_BYTES <= 10 * MIB


def test_where_nothing_is_known_of_its_size_nothing_is_done() -> None:
    assert MemoryReturn(lambda: None, lambda: None).return_if_grown() is None


@pytest.mark.skipif(resident_bytes() is None, reason="the kernel doesn't tell")
def test_large_bodies_leave_nothing_behind() -> None:
    if glibc_trim() is None:
        pytest.skip("the C library has no malloc_trim")
    ended = subprocess.run([sys.executable, "-c", LARGE_BODIES], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 10 * MIB
