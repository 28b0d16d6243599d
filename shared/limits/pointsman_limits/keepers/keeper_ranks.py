"""Chooses the preprocessor that should keep each shard of the limits' counts, from the live ones."""

import asyncio
from typing import Final

from pointsman_contracts.limits import SHARDS, LimitAsks
from pointsman_contracts.timing import TIMES
from pointsman_journey.heartbeat import Heartbeat
from pointsman_limits.domain.limits.sharding import keeper_of
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, NoListener, NoReply

SIGN_S: Final = 0.15
"""Timeout of an instance that a peer takes for dead."""
DOUBTED_S: Final = 0.8
"""How long an instance that doesn't answer counts as dead; by then its heartbeats are missing, or it is back."""


class KeeperRanks:
    """One of a process."""

    def __init__(self, bus: Bus, heartbeat: Heartbeat) -> None:
        self.me: Final = bus.process.instance
        self.members: tuple[str, ...] = (self.me,)
        """Preprocessors that keep shards."""
        self._bus: Final = bus
        self._heartbeat: Final = heartbeat
        self._keepers: list[str] = [self.me] * SHARDS
        self._doubted: Final[dict[str, float]] = {}
        self._looked_after: Final[dict[str, asyncio.Task[None]]] = {}

    @property
    def known_preprocessors(self) -> int:
        """Number of preprocessors, including those that were silent for minutes."""
        now = asyncio.get_running_loop().time()
        return max(len(self.members), len(self._heartbeat.table.list_instances(self._bus.process.service, now)))

    def keeper_of(self, shard: int) -> str:
        """The preprocessor that should keep the shard."""
        return self._keepers[shard]

    def is_alive(self, instance: str) -> bool:
        """Whether a recent heartbeat of the instance is known."""
        now = asyncio.get_running_loop().time()
        service = self._bus.process.service
        return instance not in self._doubted and self._heartbeat.table.is_alive(service, instance, now)

    def doubt_instance(self, instance: str) -> None:
        """The instance doesn't answer; its missing heartbeats would show only later."""
        self._doubted[instance] = asyncio.get_running_loop().time() + DOUBTED_S
        self.refresh_instances()

    def suspect_instance(self, instance: str) -> None:
        """The instance doesn't answer in time. A busy one still sends heartbeats: its shards aren't taken from it."""
        now = asyncio.get_running_loop().time()
        if self._heartbeat.table.seconds_silent(self._bus.process.service, instance, now) > 2 * TIMES.beat_s:
            self.doubt_instance(instance)

    def was_doubted(self, instance: str) -> bool:
        """Whether the instance was recently taken for dead."""
        return instance in self._doubted

    def look_after(self, instance: str) -> None:
        """A peer takes an instance for dead that this process takes for alive: send it a question."""
        if instance != self.me and instance not in self._doubted and instance not in self._looked_after:
            task = self._looked_after[instance] = asyncio.get_running_loop().create_task(self._look_after(instance))
            task.add_done_callback(lambda _: self._looked_after.pop(instance, None))

    def refresh_instances(self) -> None:
        """Update the live instances."""
        table, now = self._heartbeat.table, asyncio.get_running_loop().time()
        service = self._bus.process.service
        for instance in [each for each, until in self._doubted.items() if until < now]:
            del self._doubted[instance]
        found = {
            each
            for each in table.list_instances(service, now)
            if each not in self._doubted and table.is_addressable(service, each, now)
        }
        if self._heartbeat.ready:
            found.add(self.me)
        members = tuple(sorted(found)) or (self.me,)
        if members != self.members:
            self.members = members
            self._keepers = [keeper_of(shard, members) or self.me for shard in range(SHARDS)]

    def close(self) -> None:
        """Cancel the pending questions."""
        for task in self._looked_after.values():
            task.cancel()

    async def _look_after(self, instance: str) -> None:
        try:
            await self._bus.ask(LimitAsks(asks=()), instance, timeout=SIGN_S)
        except NoListener:
            self.doubt_instance(instance)
        except NoReply:
            self.suspect_instance(instance)
        except BusError:
            return  # its heartbeats will show
