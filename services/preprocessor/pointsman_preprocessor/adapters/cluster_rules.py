"""Follows the bucket in which metrics-collectors keep a cluster's rules for pools."""

import asyncio
from typing import Final
from weakref import WeakSet

from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.pool import PoolRules
from pointsman_core.config import Config
from pointsman_preprocessor.domain.pool_rules import NameRules
from pointsman_runtime.jetstream.buckets import Bucket
from pointsman_runtime.jetstream.watched_keys import Entry
from pointsman_runtime.telling.logs import Log

PATIENCE_S: Final = 2.0
"""Requests wait no longer than this for a cluster's names."""

_log = Log("rules")


class ClusterRules:
    """Passes the cluster's rules to every current configuration revision, and logs each conflict once."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket: Final = bucket
        self._rules: dict[str, PoolRules] = {}
        self._keys: dict[str, str] = {}
        self._readers: Final[WeakSet[NameRules]] = WeakSet()
        self._told: Final[set[str]] = set()

    async def start(self, config: Config) -> None:
        """Start to watch; if a pool has its endpoints in a cluster, wait briefly for its rules."""
        listed = asyncio.Event()
        self._bucket.watch(self._put, self._gone, listed.set)
        if any(pool.discovery == "kubernetes" for pool in config.pools.values()):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await listed.wait()
            except TimeoutError:
                _log.warning("rules_unknown", reason=f"the bucket wasn't listed within {PATIENCE_S:g} s")

    def pass_rules_to(self, reader: NameRules) -> None:
        """Pass the known rules to this revision, and every later change."""
        self._readers.add(reader)
        self._tell(reader)

    def _put(self, entry: Entry) -> None:
        try:
            rules = PoolRules.decode(entry.value)
        except MalformedMessage as error:
            _log.warning("malformed_rules", key=entry.key, problem=error.problem, where=error.where)
            return
        self._keys[entry.key] = rules.pool
        self._rules[rules.pool] = rules
        _log.info("rules_applied", pool=rules.pool, objectives=len(rules.objectives), rewrites=len(rules.rewrites))
        self._tell_all()

    def _gone(self, key: str) -> None:
        pool = self._keys.pop(key, None)
        # A collector that names keys in another way may have stored the same rules again.
        if pool is not None and pool not in self._keys.values():
            del self._rules[pool]
            self._tell_all()

    def _tell_all(self) -> None:
        for reader in list(self._readers):
            self._tell(reader)

    def _tell(self, reader: NameRules) -> None:
        reader.set_cluster_rules(self._rules)
        for conflict in reader.conflicts:
            if conflict not in self._told:
                self._told.add(conflict)
                _log.warning("rule_without_effect", reason=conflict)
