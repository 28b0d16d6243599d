"""Which preprocessor should keep which shard of the limits' counts, by who lives."""

import asyncio
from typing import Final

from pointsman_contracts.limits import SHARDS, LimitAsks
from pointsman_contracts.timing import TIMES
from pointsman_preprocessor.domain.limits.sharding import keeper_of
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, NobodyListens, NoReply
from pointsman_runtime.journey.heartbeat import Heartbeat

SIGN_S: Final = 0.15
"""How long an instance that another one takes for dead may take to answer."""
DOUBTED_S: Final = 0.8
"""How long an instance that doesn't answer is taken for dead; then its heartbeats are missing, or it is back."""


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
    def known(self) -> int:
        """How many preprocessors there are, those included that were silent for minutes."""
        now = asyncio.get_running_loop().time()
        return max(len(self.members), len(self._heartbeat.table.instances(self._bus.process.service, now)))

    def keeper(self, shard: int) -> str:
        """Which one should keep it."""
        return self._keepers[shard]

    def lives(self, instance: str) -> bool:
        """Whether it was heard of lately."""
        now = asyncio.get_running_loop().time()
        service = self._bus.process.service
        return instance not in self._doubted and self._heartbeat.table.alive(service, instance, now)

    def doubt(self, instance: str) -> None:
        """It doesn't answer, earlier than its heartbeats are missed."""
        self._doubted[instance] = asyncio.get_running_loop().time() + DOUBTED_S
        self.refresh()

    def suspect(self, instance: str) -> None:
        """It doesn't answer in time. One that is busy beats all the same: its shards aren't taken from it."""
        now = asyncio.get_running_loop().time()
        if self._heartbeat.table.silence(self._bus.process.service, instance, now) > 2 * TIMES.beat_s:
            self.doubt(instance)

    def doubts(self, instance: str) -> bool:
        """Whether it was taken for dead a moment ago."""
        return instance in self._doubted

    def look_after(self, instance: str) -> None:
        """Another one takes an instance for dead that isn't known to be: ask it for a sign."""
        if instance != self.me and instance not in self._doubted and instance not in self._looked_after:
            task = self._looked_after[instance] = asyncio.get_running_loop().create_task(self._look_after(instance))
            task.add_done_callback(lambda _: self._looked_after.pop(instance, None))

    def refresh(self) -> None:
        """Look who lives."""
        table, now = self._heartbeat.table, asyncio.get_running_loop().time()
        service = self._bus.process.service
        for instance in [each for each, until in self._doubted.items() if until < now]:
            del self._doubted[instance]
        found = {
            each
            for each in table.instances(service, now)
            if each not in self._doubted and table.addressable(service, each, now)
        }
        if self._heartbeat.ready:
            found.add(self.me)
        members = tuple(sorted(found)) or (self.me,)
        if members != self.members:
            self.members = members
            self._keepers = [keeper_of(shard, members) or self.me for shard in range(SHARDS)]

    def close(self) -> None:
        """Ask no more."""
        for task in self._looked_after.values():
            task.cancel()

    async def _look_after(self, instance: str) -> None:
        try:
            await self._bus.ask(LimitAsks(asks=()), instance, timeout=SIGN_S)
        except NobodyListens:
            self.doubt(instance)
        except NoReply:
            self.suspect(instance)
        except BusError:
            return  # its heartbeats will tell
