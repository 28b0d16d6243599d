"""A stage of your own: refuses long prompts and caps answers. It needs nats-py and no code of Pointsman: the
schemas contracts/schemas/request.journey.v1.json and request.rejection.v1.json define its input and its answers."""

import asyncio
import json
import os
import socket

import nats
from nats.aio.msg import Msg

NAME = "size-limit"
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 8
SERVER = os.environ.get("POINTSMAN_NATS_URL", "nats://127.0.0.1:4222")


async def handle(message: Msg) -> None:
    journey = json.loads(message.data)
    tokens = journey["request"]["prompt_tokens"]
    if tokens > PROMPT_TOKENS:
        answer = {
            "kind": "rejection", "request_id": journey["request_id"], "stage": NAME,
            "status": 400, "type": "invalid_request_error", "code": "prompt_too_long",
            "message": f"The prompt has about {tokens} tokens; send {PROMPT_TOKENS} at most.",
        }  # fmt: skip
    else:
        answer = journey
        answer["body"].append({"field": "max_tokens", "value": OUTPUT_TOKENS})
        note = f"at most {OUTPUT_TOKENS} tokens"
        answer["trail"].append({"stage": NAME, "instance": socket.gethostname(), "note": note})
    await message.respond(json.dumps(answer).encode())


async def main() -> None:
    client = await nats.connect(SERVER, max_reconnect_attempts=-1)
    await client.subscribe(f"pm.rpc.request.{NAME}.v1", queue=NAME, cb=handle)
    await asyncio.Event().wait()


asyncio.run(main())
