"""Keeps every event of the gateway in audit.db, each once, whatever happens to this process: with nats-py.

It imports no code of Pointsman: the JSON Schemas in contracts/schemas define the events.
"""

import asyncio
import json
import os
import sqlite3
from pathlib import Path

import nats
from jsonschema import Draft202012Validator
from nats.js.api import ConsumerConfig

FOLDER = Path(__file__).resolve().parent.parent / "contracts" / "schemas"
SCHEMAS = {file.stem: Draft202012Validator(json.loads(file.read_text())) for file in FOLDER.glob("*.json")}


def valid(kind: str | None, body: bytes) -> bool:
    """False also for what isn't JSON, and for a type without a schema here, such as a newer version's."""
    try:
        return kind in SCHEMAS and SCHEMAS[kind].is_valid(json.loads(body))
    except (ValueError, RecursionError):
        return False


async def main() -> None:
    db = sqlite3.connect(os.environ.get("AUDIT_DB", "audit.db"))
    columns = "id TEXT PRIMARY KEY, seq INTEGER, type TEXT, body TEXT, valid INTEGER"
    db.execute(f"CREATE TABLE IF NOT EXISTS events ({columns})")
    client = await nats.connect(os.environ.get("POINTSMAN_NATS_URL", "nats://127.0.0.1:4222"))
    reader = await client.jetstream().pull_subscribe(
        "pm.evt.>", durable="audit-nats", stream="PM_EVENTS", config=ConsumerConfig(ack_wait=5)
    )
    while True:
        try:
            messages = await reader.fetch(200, timeout=5)
        except TimeoutError:
            continue  # nothing happened for five seconds
        with db:  # one transaction; acknowledged once it is on the disk
            for message in messages:
                headers, place = message.headers or {}, message.metadata.sequence.stream
                kind, text = headers.get("Pm-Type"), message.data.decode(errors="backslashreplace")
                row = (headers.get("Nats-Msg-Id", str(place)), place, kind, text, valid(kind, message.data))
                db.execute("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?)", row)
        for message in messages:
            await message.ack()


asyncio.run(main())
