"""Gives the gateway questions over a work queue, and prints the answers as they come: with FastStream."""

import asyncio
import json
import os
import sys

from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.js.api import ConsumerConfig

QUEUE = os.environ.get("WORK_QUEUE", "nightly")
LOGIN = f"producer-{QUEUE}"
broker = NatsBroker(os.environ.get("POINTSMAN_NATS_URL", "nats://127.0.0.1:4222"), logger=None)
app = FastStream(broker, logger=None)
questions = {"batch": "What is a batch?", "queue": "What is a queue?"}


@broker.subscriber(
    f"pm.work.queue.result.v1.{QUEUE}.>",
    stream=JStream("PM_WORK_RESULTS", declare=False),
    durable=LOGIN,  # the name that a producer's login may use
    config=ConsumerConfig(name=LOGIN, ack_wait=5),
    pull_sub=PullSub(batch_size=10),
    ack_policy=AckPolicy.MANUAL,
)
async def take(message: NatsMessage) -> None:
    """A result comes again until it is acknowledged."""
    result = json.loads(message.body)
    if result["id"] in questions:
        answer = result["body"]["choices"][0]["message"]["content"] if result.get("status") == 200 else result
        sys.stdout.write(f"{result['id']}: {answer}\n")
        del questions[result["id"]]
    await message.ack()
    if not questions:
        app.exit()


@app.after_startup
async def publish() -> None:
    """An item with an id that has a result isn't run again: this program may be started again at any time."""
    for name, question in questions.items():
        body = {
            "model": "llama-3.1-8b",
            "max_tokens": 20,
            "messages": [{"role": "user", "content": question}],
        }
        # With a stream, the broker waits until the server has stored the item.
        await broker.publish(json.dumps({"id": name, "body": body}), f"pm.work.queue.item.v1.{QUEUE}", stream="PM_WORK")


if __name__ == "__main__":
    asyncio.run(app.run())
