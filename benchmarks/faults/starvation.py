"""The machine is busy with something else: answers come late, and no request is refused for it."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from typing import Final

import aiohttp

from benchmarks.faults.measure import Report, answered, longest, traffic
from pointsman_testing.stack import Stack

LOOPS: Final = 8
"""Processes that each would fill a core."""
RATE: Final = 20.0
LASTS_S: Final = 120.0
BAD_EVERY_S: Final = 10.0
"""Seconds between bodies that are invalid and must be rejected."""
LARGE: Final = 3_500_000
"""Bytes of a body that is allowed."""
AT_ONCE: Final = 5


async def starved(stack: Stack, report: Report, lasts_s: float = LASTS_S) -> None:
    """Traffic, bad bodies and large bodies beside busy loops."""
    async with traffic(stack, RATE) as running:
        await answered(running, int(RATE))
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
        try:
            began = running.now
            bad = Counter[int]()
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
                large = asyncio.gather(*(_status(http, stack, _large()) for _ in range(AT_ONCE)))
                ends = time.monotonic() + lasts_s
                while time.monotonic() < ends:
                    bad[await _status(http, stack, _many_messages())] += 1
                    await asyncio.sleep(max(0.0, min(BAD_EVERY_S, ends - time.monotonic())))
                sizes = Counter(await large)
        finally:
            for one in busy:
                one.kill()
                one.wait()
    name = f"{LOOPS} busy loops, {RATE:g}/s for {lasts_s:g} s"
    report.line(f"{name}, failed requests", len(running.failed()), 0, "requests")
    report.line(f"{name}, bodies of 100,000 messages without a 400", bad.total() - bad[400], 0, "requests")
    report.line(f"{AT_ONCE} bodies of {LARGE / 1e6:g} MB at once, refused", AT_ONCE - sizes[200], 0, "requests")
    print(
        f"         longest answer {longest(running, began):.2f} s; {dict(running.statuses())} {dict(bad)} {dict(sizes)}"
    )
    for end in running.failed()[:3]:
        print(f"         {end.status} after {end.took:.2f} s: {end.problem}")


def _many_messages() -> bytes:
    """More messages than a request may have."""
    return json.dumps({"model": "auto", "messages": [{"role": "user", "content": "x"}] * 100_000}).encode()


def _large() -> bytes:
    """A body within the limit of an edge, with a prompt within the limit of an engine."""
    message = {"role": "user", "content": "hello"}
    document = {"model": "auto", "messages": [message], "max_tokens": 2, "metadata": {"note": "x" * LARGE}}
    return json.dumps(document).encode()


async def _status(http: aiohttp.ClientSession, stack: Stack, body: bytes) -> int:
    headers = {"content-type": "application/json"}
    async with http.post(f"{stack.door}/v1/chat/completions", data=body, headers=headers) as answer:
        await answer.read()
        return answer.status
