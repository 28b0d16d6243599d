"""The stored events of the last minutes, from their stream."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError, ServiceUnavailableError

from pointsman_cli.explain import events
from pointsman_cli.words import CommandError
from pointsman_core.request_events import Event
from pointsman_runtime.jetstream.stores import EVENT_STREAM

_BATCH: Final = 500


async def read_events(client: Client, since: timedelta, needle: bytes) -> AsyncIterator[Event]:
    """The events with these bytes, oldest first. CommandError when the stream can't be read."""
    try:
        async for event in _read(client, since, needle):
            yield event
    except (NotFoundError, ServiceUnavailableError) as error:
        raise CommandError(
            f"the stream {EVENT_STREAM} doesn't exist.", "`pointsman doctor` says what the server lacks."
        ) from error
    except (NatsError, TimeoutError) as error:
        # A server doesn't answer requests that a login may not make.
        reason = "no answer" if isinstance(error, TimeoutError) else str(error).removeprefix("nats: ")
        raise CommandError(
            f"the stream {EVENT_STREAM} can't be read: {reason}.",
            "`pointsman doctor` says what the server or this login lacks.",
        ) from error


async def _read(client: Client, since: timedelta, needle: bytes) -> AsyncIterator[Event]:
    """The stream has no index by request or session, so its recent part is read."""
    js = client.jetstream(timeout=5.0)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
    subscription = await js.pull_subscribe(
        events.ALL_EVENTS,
        stream=EVENT_STREAM,
        config=ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=datetime.now(UTC) - since,
            inactive_threshold=30.0,
            mem_storage=True,
        ),
    )
    pending = (await subscription.consumer_info()).num_pending or 0
    while pending:
        for message in await subscription.fetch(min(_BATCH, pending), timeout=5.0):
            pending = message.metadata.num_pending
            # Searching the bytes of an event costs a hundredth of decoding it.
            if needle in message.data and (event := events.decode(message)) is not None:
                yield event
        await asyncio.sleep(0)
    await subscription.unsubscribe()
