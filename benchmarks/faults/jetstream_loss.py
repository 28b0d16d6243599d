"""JetStream, the stream of events and the bucket of workers are gone under a gateway that runs."""

import asyncio
from typing import Final

from benchmarks.faults.full_disk import jetstream, until_stored
from benchmarks.faults.measure import Report, answered, traffic
from pointsman_runtime.jetstream.stores import EVENT_STREAM, WORKERS_BUCKET
from pointsman_testing.nats_server import LocalNatsServer
from pointsman_testing.stack import Stack

RATE: Final = 20.0
AWAY_S: Final = 12.0
"""Twice as long as a registration lasts."""


async def without_jetstream(stack: Stack, report: Report) -> None:
    """Streams are deleted, then JetStream restarts while the server runs on."""
    async with traffic(stack, RATE) as running, jetstream(stack.nats.url) as js:
        await answered(running, int(2 * RATE))
        await js.delete_stream(EVENT_STREAM)
        await js.delete_stream(f"KV_{WORKERS_BUCKET}")
        made_after = await until_stored(js)
        await asyncio.sleep(AWAY_S)
        report.line("stream and bucket deleted, failed requests", len(running.failed()), 0, "requests")
        report.line("stream deleted, events stored after", made_after, 5.0, "s")
        if isinstance(stack.nats, LocalNatsServer):
            before = len(running.failed())
            await asyncio.to_thread(stack.nats.stop_jetstream)
            await asyncio.sleep(AWAY_S)
            await asyncio.to_thread(stack.nats.start_jetstream)
            stored_after = await until_stored(js)
            await answered(running, int(5 * RATE))
            failed = len(running.failed()) - before
            report.line(f"JetStream off for {AWAY_S:g} s, failed requests", failed, 0, "requests")
            report.line("JetStream on again, events stored after", stored_after, 5.0, "s")
    for end in running.failed()[:3]:
        print(f"         {end.status} after {end.took:.2f} s: {end.problem}")
