"""Writes the cluster's rules for pools into the bucket that preprocessors read."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from nats.errors import Error as NatsError

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.pool import PoolRules
from pointsman_contracts.subjects import kv_key
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_metrics_collector.domain.ownership import owner
from pointsman_runtime.jetstream.errors import jetstream_words
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

LOOK_S: Final = 0.5

_log = Log("rules")


class RuleEntries(Protocol):
    """The bucket; a `pointsman_runtime.jetstream.buckets.Bucket` is one."""

    async def put(self, key: str, value: bytes) -> int:
        """Write. Raises nats errors and TimeoutError."""
        ...

    async def delete(self, key: str) -> None:
        """Remove. Raises what `put` raises."""
        ...


class RulesBucket:
    """Keeps the bucket equal to the findings: the collector that owns a pool writes when they differ."""

    def __init__(
        self,
        entries: RuleEntries,
        findings: Callable[[], Mapping[str, EngineSource]],
        pools: Callable[[], Collection[str] | None],
        instance: str,
        instances: Callable[[str], Collection[str]],
    ) -> None:
        """`pools()` are those for which a cluster may have rules; None before there is a configuration.
        `instances(pool)` are the collectors that know the pool."""
        self._entries: Final = entries
        self._findings: Final = findings
        self._pools: Final = pools
        self._instance: Final = instance
        self._instances: Final = instances
        self._stored: dict[str, PoolRules | None] = {}
        self._listed = False
        self._problem = ""

    def note_entry(self, entry: Entry) -> None:
        try:
            self._stored[entry.key] = PoolRules.decode(entry.value)
        except MalformedMessage:
            self._stored[entry.key] = None  # any error: the entry isn't valid

    def note_entry_gone(self, key: str) -> None:
        """The bucket doesn't have this any more."""
        self._stored.pop(key, None)

    def end_listing(self) -> None:
        """The listing of the bucket is complete."""
        self._listed = True

    async def run(self) -> None:
        """Write what differs until cancelled."""
        while True:
            pools = self._pools()
            if self._listed and pools is not None:
                try:
                    await self._write(pools)
                    self._problem = ""
                except (NatsError, OSError, TimeoutError) as error:
                    problem = jetstream_words(error)
                    if problem != self._problem:
                        self._problem = problem
                        _log.warning("rules_not_written", reason=problem)
            await asyncio.sleep(LOOK_S)

    async def _write(self, pools: Collection[str]) -> None:
        keys = {kv_key(PoolRules, pool): pool for pool in pools}
        for key, pool in keys.items():
            finding = self._findings().get(pool)
            # A finding that may be stale doesn't replace another collector's newer one.
            if finding is None or finding.rules is None or finding.problem:
                continue
            if self._stored.get(key) != finding.rules and owner(pool, "rules", self._instances(pool)) == self._instance:
                await self._entries.put(key, finding.rules.encode())
                rules = finding.rules
                _log.info("rules_written", pool=pool, objectives=len(rules.objectives), rewrites=len(rules.rewrites))
        for key in self._stored.keys() - keys.keys():
            if owner(key, "rules", self._instances(key)) == self._instance:
                await self._entries.delete(key)
                _log.info("rules_removed", key=key)
