"""The configuration revision that each replica runs, from its beats."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.subjects import ANY, subject
from pointsman_contracts.timing import ROLLOUT_LOOK_S, TIMES

LOOK_S: Final = 0.02


class Replicas:
    """The latest beat of every replica."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[tuple[str, str], tuple[float, ServicePresence]] = {}

    def receive_presence(self, presence: ServicePresence) -> None:
        """A beat arrived."""
        self._heard[presence.service, presence.instance] = self._clock(), presence

    def living_replicas(self) -> list[ServicePresence]:
        """The replicas heard recently that run a configuration, by service and instance. Recent is relative to the last
        beat heard: when none arrives, the bus or this process is slow."""
        since = max((at for at, _ in self._heard.values()), default=0.0) - TIMES.service_silent_s
        return [presence for _, (at, presence) in sorted(self._heard.items()) if at >= since and presence.revision]


def behind(replicas: Iterable[ServicePresence], revision: int) -> list[ServicePresence]:
    """The replicas that take work and run neither this revision nor a later one."""
    return [presence for presence in replicas if presence.ready and presence.revision < revision]


@asynccontextmanager
async def listening(client: Client) -> AsyncGenerator[Replicas]:
    """Receive beats for the length of a `with`; begins when every living replica was heard."""
    replicas = Replicas(time.monotonic)

    async def beat(message: Msg) -> None:
        try:
            replicas.receive_presence(ServicePresence.decode(message.data))
        except MalformedMessage:
            return  # another version's beat; `pointsman doctor` reports versions

    topic = subject(ServicePresence, ANY, ANY)
    subscription = await client.subscribe(topic, cb=beat)  # pyright: ignore[reportUnknownMemberType] - nats-py
    await client.flush()
    await asyncio.sleep(TIMES.service_silent_s)
    # Messages that queued while the server was slow arrive before its answer.
    await client.flush()
    try:
        yield replicas
    finally:
        await subscription.unsubscribe()


async def everybody_runs(replicas: Replicas, revision: int, patience_s: float) -> float | None:
    """Wait until every replica runs the revision, and new requests get it. Returns the seconds it took; None when a
    replica is still behind."""
    began = time.monotonic()
    while behind(replicas.living_replicas(), revision):
        if time.monotonic() - began >= patience_s:
            return None
        await asyncio.sleep(LOOK_S)
    # An edge sees the last replica's beat, and gives the revision to new requests at its next look.
    await asyncio.sleep(2 * ROLLOUT_LOOK_S)
    return time.monotonic() - began
