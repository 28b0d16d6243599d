"""Aborts exchanges of a whole gateway, and waits until nothing of them is left."""

import asyncio
import contextlib
import json
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.overhead.stack import Running
from pointsman_testing import eventually
from pointsman_testing.ext_proc import ExtProcClient

LEFT: Final = ("pointsman_edge_open_requests", "pointsman_scheduler_open_requests")
"""Metrics of the gateway's process that must be zero afterwards."""
LIMIT_S: Final = 120.0
_AT_A_TIME: Final = 50


async def abort(running: Running, body: bytes, count: int) -> dict[str, float]:
    """Abort `count` exchanges: right after the head, while they are decided, and when they are on the books. Returns
    the number left open, by metric, once it is zero or `LIMIT_S` have passed."""
    async with ExtProcClient(adapter_address(running)) as client:

        async def several(first: int) -> None:
            for number in range(first, count, _AT_A_TIME):
                call = client.open()
                await call.request()
                if number % 3:
                    await call.body(body)
                if number % 3 == 2:
                    await call.replies(2)
                call.reset()

        await asyncio.gather(*(several(first) for first in range(_AT_A_TIME)))
    left: dict[str, float] = {}

    async def nothing() -> bool:
        left.update(await _left(http, running))
        return not any(left.values())

    async with aiohttp.ClientSession() as http:
        with contextlib.suppress(AssertionError):  # the caller reports the rest
            await eventually(nothing, timeout=LIMIT_S)
    return left


def adapter_address(running: Running) -> str:
    """The adapter's host and port, as it logs them."""
    for line in (running.logs / "gateway.log").read_text().splitlines():
        if '"serving"' in line:
            return str(json.loads(line)["url"]).partition("://")[2]
    raise SystemExit("the adapter doesn't say where it serves")


async def _left(http: aiohttp.ClientSession, running: Running) -> dict[str, float]:
    async with http.get(f"{running.urls['gateway']}/metrics") as answer:
        families = list(text_string_to_metric_families(await answer.text()))
    found: dict[str, float] = {}
    for each in (sample for family in families for sample in family.samples if sample.name in LEFT):
        found[each.name] = found.get(each.name, 0.0) + each.value
    if len(found) < len(LEFT):
        raise SystemExit(f"the gateway's metrics lack some of {', '.join(LEFT)}")
    return found
