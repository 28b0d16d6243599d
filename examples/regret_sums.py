"""Adds up the regret in the events of the gateway, by pool, scheduling profile and reason: with nats-py alone.

Prints a JSON object a row, as `pointsman regret --json` does, from what the stream of events still has.
"""

import asyncio
import json
import os
import sys
from collections import Counter

import nats
from nats.js.api import AckPolicy, ConsumerConfig


async def main() -> None:
    client = await nats.connect(os.environ.get("POINTSMAN_NATS_URL", "nats://127.0.0.1:4222"))
    reader = await client.jetstream().pull_subscribe(
        "pm.evt.request.judged.v1.>", stream="PM_EVENTS", config=ConsumerConfig(ack_policy=AckPolicy.NONE)
    )
    sums: dict[tuple[str, str, str], Counter[str]] = {}
    left = (await reader.consumer_info()).num_pending or 0
    while left:
        messages = await reader.fetch(min(100, left), timeout=5)
        left -= len(messages)
        for message in messages:
            event = json.loads(message.data)
            for choice in (choice for request in event["requests"] for choice in request["choices"]):
                row = sums.setdefault((event["pool"], choice["profile"], choice["reason"]), Counter())
                row.update(requests=1, judged=1, regret_us=choice["regret_us"], cost_us=choice["cost_us"])
                if choice.get("filter"):
                    row = sums.setdefault((event["pool"], choice["profile"], f"filter:{choice['filter']}"), Counter())
                    row.update(requests=1, judged=0, regret_us=choice["filtered_us"], cost_us=0)
    for (pool, profile, reason), row in sorted(sums.items()):
        sys.stdout.write(json.dumps({"pool": pool, "profile": profile, "reason": reason, **row}) + "\n")
    await client.close()


asyncio.run(main())
