"""A cluster finds the engines of the pools that have their endpoints there."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pointsman_core.config import load
from pointsman_metrics_collector.adapters.kubernetes.api import connect
from pointsman_metrics_collector.adapters.kubernetes.cluster import Cluster
from pointsman_metrics_collector.domain.finding import EngineSource
from pointsman_testing import eventually
from pointsman_testing.kube_api import KubeApi
from pointsman_testing.kube_objects import INFERENCE_POOLS, OBJECTIVES, PODS, REWRITES


class Found:
    """The endpoints that were published, by pool."""

    def __init__(self) -> None:
        self.by_pool: dict[str, EngineSource] = {}

    def take(self, pool: str, finding: EngineSource) -> None:
        self.by_pool[pool] = finding

    def workers(self, pool: str = "p") -> dict[str, bool] | None:
        """Worker → whether it drains; None before anything is known."""
        finding = self.by_pool.get(pool)
        return None if finding is None else {key[1]: engine.draining for key, engine in finding.engines.items()}

    def problem(self, pool: str = "p") -> str:
        return self.by_pool[pool].problem


@pytest.fixture
async def api() -> AsyncGenerator[KubeApi]:
    async with KubeApi() as started:
        yield started


@asynccontextmanager
async def running(found: Found, **pools: dict[str, Any]) -> AsyncGenerator[Cluster]:
    cluster = Cluster(connect, found.take)
    configure(cluster, **pools)
    task = asyncio.create_task(cluster.run())
    try:
        yield cluster
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled(), task.exception()


def configure(cluster: Cluster, **pools: dict[str, Any]) -> None:
    cluster.follow_pools(
        load({"pools": {name: {"discovery": "kubernetes", "kubernetes": where} for name, where in pools.items()}})
    )


@pytest.fixture(autouse=True)
def credentials(api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path)))


async def test_ready_pods_of_an_inference_pool_are_found_drain_and_go(api: KubeApi) -> None:
    api.inference_pool("ip", 8000)
    api.pod("a")
    api.pod("starting", ready=False)
    found = Found()
    async with running(found, p={"inference_pool": "ip"}):
        await eventually(lambda: found.workers() == {"a": False})
        assert not found.problem()
        api.pod("starting")
        await eventually(lambda: found.workers() == {"a": False, "starting": False})
        api.pod("a", terminating=True)
        await eventually(lambda: found.workers() == {"a": True, "starting": False})
        api.delete(PODS, "a")
        await eventually(lambda: found.workers() == {"starting": False})
        api.pod("starting", phase="Failed")
        await eventually(lambda: found.workers() == {})


async def test_another_selector_and_other_ports_of_an_inference_pool_are_followed(api: KubeApi) -> None:
    api.inference_pool("ip", 8000)
    api.pod("a")
    api.pod("b", labels={"app": "new"})
    found = Found()
    async with running(found, p={"inference_pool": "ip"}):
        await eventually(lambda: found.workers() == {"a": False})
        api.inference_pool("ip", 8000, 8001, labels={"app": "new"})
        await eventually(lambda: found.workers() == {"b:8000": False, "b:8001": False})
        api.delete(INFERENCE_POOLS, "ip")
        await eventually(lambda: found.workers() == {} and "the InferencePool 'ip' doesn't exist" in found.problem())


async def test_pods_by_label_need_no_inference_pool_and_pools_come_and_go_with_the_configuration(api: KubeApi) -> None:
    api.absent |= {"inferencepools", "inferenceobjectives", "inferencemodelrewrites"}
    api.pod("a")
    api.pod("b", labels={"app": "other"})
    found = Found()
    async with running(found, p={"selector": {"app": "vllm"}, "ports": [9000]}) as cluster:
        await eventually(lambda: found.workers() == {"a": False})
        assert {asked.path for asked in api.asked} == {"/api/v1/namespaces/default/pods"}, "it asks for nothing more"
        configure(cluster, q={"selector": {"app": "other"}, "ports": [9000], "namespace": "default"})
        await eventually(lambda: found.workers("q") == {"b": False})
        await eventually(lambda: api.watching == 1)
        configure(cluster)
        await eventually(lambda: api.watching == 0)
        configure(cluster, p={"selector": {"app": "vllm"}, "ports": [9001]})
        await eventually(lambda: found.workers() == {"a": False} and api.watching == 1)


async def test_objectives_and_rewrites_of_the_inference_pool_are_found(api: KubeApi) -> None:
    api.inference_pool("ip")
    api.put(OBJECTIVES, "vip", {"spec": {"priority": 50, "poolRef": {"name": "ip"}}})
    found = Found()
    async with running(found, p={"inference_pool": "ip"}) as cluster:
        await eventually(lambda: found.workers() == {})
        await eventually(lambda: (rules := found.by_pool["p"].rules) is not None and rules.objectives == {"vip": 50})
        rule = {"matches": [{"model": {"value": "food"}}], "targets": [{"modelRewrite": "food-v1"}]}
        api.put(REWRITES, "canary", {"spec": {"poolRef": {"name": "ip"}, "rules": [rule]}})
        await eventually(lambda: (rules := found.by_pool["p"].rules) is not None and len(rules.rewrites) == 1)
        api.delete(OBJECTIVES, "vip")
        await eventually(lambda: (rules := found.by_pool["p"].rules) is not None and not rules.objectives)
        assert cluster.list_pools() == {"p"}
        configure(cluster, p={"selector": {"app": "vllm"}, "ports": [9000]})
        await eventually(lambda: found.by_pool["p"].rules is None)
        assert cluster.list_pools() == set(), "rules that were written go"


async def test_engines_stay_while_the_api_server_is_away_and_the_reason_is_said(
    api: KubeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.pod("a")
    found = Found()
    where = {"selector": {"app": "vllm"}, "ports": [9000]}
    async with running(found, p=where):
        await eventually(lambda: found.workers() == {"a": False} and api.watching == 1)
        api.denied.add("pods")
        api.cut()
        await eventually(lambda: "answers 403" in found.problem())
        assert found.workers() == {"a": False}
        api.delete(PODS, "a")
        api.denied.clear()
        await eventually(lambda: found.workers() == {} and not found.problem())
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    nothing = Found()
    async with running(nothing, p=where):
        await eventually(lambda: nothing.workers() == {} and "no credentials for a cluster" in nothing.problem())
