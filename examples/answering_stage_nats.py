"""A stage of your own that answers by itself: while there is a notice, chats get it and cost nothing. It needs nats-py
and no code of Pointsman: the schema contracts/schemas/request.answer.v1.json describes the line before the body."""

import asyncio
import json
import os
import time

import nats
from nats.aio.msg import Msg

NAME = "notice"
NOTICE = os.environ.get("NOTICE", "")
SERVER = os.environ.get("POINTSMAN_NATS_URL", "nats://127.0.0.1:4222")


async def handle(message: Msg) -> None:
    journey = json.loads(message.data)
    request = journey["request"]
    if not NOTICE or request["api"] != "chat.completions":
        await message.respond(message.data)
        return
    stream = request["stream"]
    said = {"index": 0, "finish_reason": "stop", "delta" if stream else "message": {"content": NOTICE}}
    chat = {"id": journey["request_id"], "created": int(time.time()), "model": journey["model"], "choices": [said]}
    body = json.dumps(chat | {"object": "chat.completion.chunk" if stream else "chat.completion"})
    answer = {"kind": "answer", "request_id": journey["request_id"], "stage": NAME}
    if stream:
        answer["content_type"] = "text/event-stream"
        body = f"data: {body}\n\ndata: [DONE]\n\n"
    await message.respond(f"{json.dumps(answer)}\n{body}".encode())


async def main() -> None:
    client = await nats.connect(SERVER, max_reconnect_attempts=-1)
    await client.subscribe(f"pm.rpc.request.{NAME}.v1", queue=NAME, cb=handle)
    await asyncio.Event().wait()


asyncio.run(main())
