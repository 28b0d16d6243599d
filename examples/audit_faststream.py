"""Keeps every event of the gateway in audit.db, each once, whatever happens to this process: with FastStream."""

import asyncio
import logging
import os
import sqlite3

from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.js.api import ConsumerConfig

# A failure is logged as an error; that an event came, at a level which isn't shown.
broker = NatsBroker(os.environ.get("POINTSMAN_NATS_URL", "nats://127.0.0.1:4222"), log_level=logging.DEBUG)
app = FastStream(broker)
db = sqlite3.connect(os.environ.get("AUDIT_DB", "audit.db"))
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, seq INTEGER, type TEXT, body TEXT)")


@broker.subscriber(
    "pm.evt.>",
    stream=JStream("PM_EVENTS", declare=False),
    durable="audit-faststream",
    config=ConsumerConfig(ack_wait=5),
    pull_sub=PullSub(batch_size=100),
    ack_policy=AckPolicy.MANUAL,  # FastStream's own is to drop what a handler failed at, for good
)
async def keep(message: NatsMessage) -> None:
    """An event that failed, or whose acknowledgement was lost, comes again with the id that it had."""
    text = message.body.decode(errors="backslashreplace")
    place = message.raw_message.metadata.sequence.stream
    row = (message.headers.get("Nats-Msg-Id", str(place)), place, message.headers.get("Pm-Type"), text)
    with db:
        db.execute("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?)", row)
    await message.ack()


if __name__ == "__main__":
    asyncio.run(app.run())
