"""Finds the engines of all pools that have their endpoints in a cluster."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from pointsman_core.config import Config, Kubernetes, Pool
from pointsman_metrics_collector.adapters.kubernetes.reflector import Reflector
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_metrics_collector.domain.kubernetes.answers import Unreachable
from pointsman_metrics_collector.domain.kubernetes.collections import Collection, Seen, T
from pointsman_metrics_collector.domain.kubernetes.finding import find, wanted
from pointsman_metrics_collector.domain.kubernetes.objects import KubeObject
from pointsman_runtime.bus.cancellation import end_all
from pointsman_runtime.telling.logs import Log

if TYPE_CHECKING:
    # Only processes with a cluster load the client library.
    from pointsman_metrics_collector.adapters.kubernetes.api import KubernetesApi

GATHER_S: Final = 0.05
"""A first change is handled at once; further changes within these seconds are handled together: a look at a thousand
pods takes 16 ms."""
RECONNECT_S: Final = 5.0
"""Seconds between attempts with credentials that failed."""
CHECK_S: Final = 5.0

_log = Log("kubernetes")


class Cluster:
    """`connect` makes the connection once a pool needs it; `on_finding` is called with each new finding of a pool."""

    def __init__(self, connect: "Callable[[], KubernetesApi]", on_finding: Callable[[str, EngineSource], None]) -> None:
        self._connect: Final = connect
        self._on_finding: Final = on_finding
        self._pools: dict[str, tuple[Pool, Kubernetes]] = {}
        self._findings: dict[str, EngineSource] = {}
        self._known: dict[str, set[str]] = {}
        self._reflectors: dict[Collection[KubeObject], Reflector[KubeObject]] = {}
        self._tasks: dict[Collection[KubeObject], asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._configured = False

    def follow_pools(self, config: Config) -> None:
        """Follow the pools of this configuration."""
        self._configured = True
        self._pools = {
            name: (pool, pool.kubernetes) for name, pool in config.pools.items() if pool.kubernetes is not None
        }
        for name in self._findings.keys() - self._pools.keys():
            del self._findings[name]
            self._known.pop(name, None)
        self._changed.set()

    def list_pools(self) -> frozenset[str] | None:
        """Pools that an InferencePool, and with it rules, is for; None before there is a configuration."""
        if not self._configured:
            return None
        return frozenset(name for name, (_, where) in self._pools.items() if where.inference_pool is not None)

    async def run(self) -> None:
        """Watch what the pools need until cancelled."""
        while True:
            await self._changed.wait()
            if not self._pools:
                self._changed.clear()
                continue
            try:
                api = self._connect()
            except Unreachable as error:
                self._say_unreachable(error)
                await asyncio.sleep(RECONNECT_S)
                continue
            async with AsyncExitStack() as stack:
                stack.push_async_callback(api.close)
                stack.push_async_callback(self._stop)
                _log.info("kubernetes_connected", server=api.server, namespace=api.namespace)
                await self._follow(api)

    async def _follow(self, api: "KubernetesApi") -> None:
        """Until no pool needs the cluster any more."""
        while self._pools:
            self._changed.clear()
            await self._watch_what_is_wanted(api)
            self._look_at_pools(api.namespace)
            for task in self._tasks.values():
                if task.done():
                    task.result()
            await asyncio.sleep(GATHER_S)
            try:
                async with asyncio.timeout(CHECK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _watch_what_is_wanted(self, api: "KubernetesApi") -> None:
        needed = {
            collection for _, where in self._pools.values() for collection in wanted(where, api.namespace, self._look)
        }
        await self._end(self._reflectors.keys() - needed)
        for collection in needed - self._reflectors.keys():
            reflector = Reflector(api, collection, self._changed.set)
            self._reflectors[collection] = reflector
            self._tasks[collection] = asyncio.create_task(reflector.run())

    def _look_at_pools(self, namespace: str) -> None:
        for name, (pool, where) in self._pools.items():
            before = self._findings.get(name)
            known = self._known.setdefault(name, set())
            finding = find(
                name=name, pool=pool, where=where, namespace=namespace, look=self._look, before=before, known=known
            )
            if finding is not None and (before is None or _differ(before, finding)):
                self._findings[name] = finding
                self._on_finding(name, finding)

    def _look(self, collection: Collection[T]) -> Seen[T]:
        # A collection's reflector reads its kind.
        reflector = cast("Reflector[T] | None", self._reflectors.get(cast("Collection[KubeObject]", collection)))
        return Seen() if reflector is None else reflector.seen

    def _say_unreachable(self, error: Unreachable) -> None:
        for name in self._pools:
            before = self._findings.get(name, EngineSource("kubernetes", answered=False))
            finding = replace(before, problem=f"the API server isn't reached: {error}")
            if before != finding:
                _log.warning("kubernetes_not_current", what=f"pool {name}", reason=finding.problem)
                self._findings[name] = finding
                self._on_finding(name, finding)

    async def _stop(self) -> None:
        await self._end(set(self._reflectors))

    async def _end(self, collections: set[Collection[KubeObject]]) -> None:
        tasks = [self._tasks.pop(collection) for collection in collections]
        for collection in collections:
            del self._reflectors[collection]
        await end_all(tasks)


def _differ(one: EngineSource, other: EngineSource) -> bool:
    """Whether anything differs, draining included. An engine that starts to drain stays the same engine."""
    return one != other or _draining(one) != _draining(other)


def _draining(finding: EngineSource) -> Mapping[tuple[str, str], bool]:
    return {key: engine.draining for key, engine in finding.engines.items()}
