"""A response stage of your own: takes card numbers out of answers and withholds private keys. It needs nats-py
and no code of Pointsman: the schemas contracts/schemas/response.review.v1.json and response.verdict.v1.json define its
input and its answers."""

import asyncio
import json
import os
import re
import socket

import nats
from nats.aio.msg import Msg

NAME = "redact"
REMOVED = re.compile(os.environ.get("REMOVED", r"\b\d(?:[ -]?\d){12,18}\b"))
WITHHELD = re.compile(os.environ.get("WITHHELD", r"BEGIN [A-Z ]*PRIVATE KEY"))
SERVER = os.environ.get("POINTSMAN_NATS_URL", "nats://127.0.0.1:4222")


async def handle(message: Msg) -> None:
    review = json.loads(message.data)
    verdict = {"kind": "verdict", "request_id": review["request_id"], "instance": socket.gethostname()}
    texts = {text["part"]: text["text"] for text in review["texts"]}
    if any(WITHHELD.search(text) for text in texts.values()):
        verdict |= {"action": "block", "message": "The answer had a private key in it."}
    elif any(REMOVED.search(text) for text in texts.values()):
        cleaned = [{"part": part, "text": REMOVED.sub("[removed]", text)} for part, text in texts.items()]
        verdict |= {"action": "replace", "texts": cleaned, "note": "a card number"}
    await message.respond(json.dumps(verdict).encode())


async def main() -> None:
    client = await nats.connect(SERVER, max_reconnect_attempts=-1)
    await client.subscribe(f"pm.rpc.response.review.v1.{NAME}", queue=NAME, cb=handle)
    await asyncio.Event().wait()


asyncio.run(main())
