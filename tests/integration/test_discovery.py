"""Engines that a cluster or a file names, and frontends of other systems, serve requests at the real door."""

import json
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from rich.console import Console

from pointsman_cli.doctor.doctor import doctor
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, CONFIG_KEY
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.kube_api import KubeApi
from pointsman_testing.kube_objects import OBJECTIVES, PODS, REWRITES
from pointsman_testing.observer import Observer, observing
from pointsman_testing.stack import Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


class World(NamedTuple):
    """A gateway with a pool in a cluster, one in a file, and one of frontends that tell no load."""

    stack: Stack
    cluster: KubeApi
    engines: list[FakeEngine]
    """Ports of one pod."""
    listed: FakeEngine
    fronts: list[FakeEngine]
    file: Path

    def put_pod(self, **changes: Any) -> None:
        """The pod of both engines."""
        self.cluster.pod("vllm-0", "127.0.0.1", **changes)

    async def ask(self, model: str, *, comes_again: bool = True, **headers: str) -> tuple[int, dict[str, Any]]:
        """A chat; status and answer."""
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}

        async def once() -> tuple[int, dict[str, Any]]:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
                http.post(f"{self.stack.door}/v1/chat/completions", json=body, headers=headers) as answer,
            ):
                return answer.status, await answer.json()

        return await (answered(once) if comes_again else once())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(stacks: StackFactory, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("discovery")
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        cluster = await enter(KubeApi())
        engines = [await enter(FakeEngine(models={"data": [{"id": "llama-k8s"}]})) for _ in range(2)]
        listed = await enter(FakeEngine(models={"data": [{"id": "llama-file"}]}))
        fronts = [await enter(FakeEngine(models_status=404)) for _ in range(2)]
        cluster.inference_pool("vllm", *(int(engine.url.rpartition(":")[2]) for engine in engines))
        file = folder / "endpoints.yaml"
        file.write_text(f"engines: [{{url: '{listed.url}', name: listed}}]")
        changes: dict[str, Any] = {
            "pools": {
                "llama-8b": {"models": ["llama-3.1-8b", "sql-lora"], "loras": ["sql-lora"]},
                "cluster": {"discovery": "kubernetes", "kubernetes": {"inference_pool": "vllm"}},
                "file": {"discovery": "file", "file": str(file)},
                "elsewhere": {
                    "models": ["black-box"],
                    "discovery": "static",
                    "engines": [
                        {"url": front.url, "name": f"front-{number}", "engine": "opaque"}
                        for number, front in enumerate(fronts)
                    ],
                },
            },
        }
        with pytest.MonkeyPatch.context() as patch:
            # Processes started from here on find the cluster by it.
            patch.setenv("KUBECONFIG", str(cluster.kubeconfig(folder)))
            gateway = await enter(stacks.start(engines=0, changes=changes))
        yield World(gateway, cluster, engines, listed, fronts, file)


@asynccontextmanager
async def watching(world: World) -> AsyncGenerator[tuple[Observer, dict[str, PoolSnapshot], list[RequestScheduled]]]:
    """The newest snapshot of each pool, and decisions."""
    async with observing(world.stack.nats.url) as seen:
        newest = defaultdict[str, PoolSnapshot](lambda: PoolSnapshot(pool="", source="", sequence=0, at_ms=0))
        seen.bus.listen(PoolSnapshot, lambda snapshot: newest.__setitem__(snapshot.pool, snapshot), ANY)
        yield seen, newest, seen.listen(RequestScheduled, ANY)


def _states(snapshot: PoolSnapshot) -> set[str]:
    return {worker.state for worker in snapshot.workers}


def _problem(snapshot: PoolSnapshot) -> str:
    return "" if snapshot.discovery is None else snapshot.discovery.problem


@pytest.mark.requirement("S1-6")
async def test_pods_of_a_cluster_serve_drain_and_go(world: World) -> None:
    async with watching(world) as (_, snapshots, decisions):
        world.put_pod()
        await eventually(
            lambda: len(snapshots["cluster"].workers) == 2 and _states(snapshots["cluster"]) == {"serving"}
        )
        status, answer = await world.ask("llama-k8s")
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hello")
        await eventually(lambda: decisions)
        assert decisions[-1].endpoints[0].startswith("vllm-0:")
        found = snapshots["cluster"].discovery
        assert found is not None
        assert (found.kind, found.endpoints, found.problem) == ("kubernetes", 2, "")

        world.put_pod(terminating=True)
        await eventually(lambda: _states(snapshots["cluster"]) == {"draining"})

        async def is_refused() -> bool:
            return (await world.ask("llama-k8s", comes_again=False))[0] != 200

        # The scheduler hears of it when this test does, or a moment later.
        await eventually(is_refused)
        world.cluster.delete(PODS, "vllm-0")
        await eventually(lambda: snapshots["cluster"].workers == ())
        world.put_pod()
        await eventually(lambda: _states(snapshots["cluster"]) == {"serving"})


@pytest.mark.requirement("S1-20")
async def test_rewrites_of_the_cluster_serve_a_name_that_is_no_model(world: World) -> None:
    world.put_pod()
    rule = {"matches": [{"model": {"type": "Exact", "value": "food"}}], "targets": [{"modelRewrite": "llama-k8s"}]}
    world.cluster.put(REWRITES, "canary", {"spec": {"poolRef": {"name": "vllm"}, "rules": [rule]}})
    world.cluster.put(OBJECTIVES, "vip", {"spec": {"poolRef": {"name": "vllm"}, "priority": 7}})

    async def served() -> bool:
        return (await world.ask("food"))[0] == 200

    await eventually(served)
    [received] = [each for engine in world.engines for each in engine.received if each.body][-1:]
    assert json.loads(received.body)["model"] == "llama-k8s"
    world.cluster.delete(REWRITES, "canary")

    async def unknown() -> bool:
        return (await world.ask("food"))[0] == 404

    await eventually(unknown)


@pytest.mark.requirement("S1-11")
async def test_frontends_of_another_system_share_requests_by_own_counts(world: World) -> None:
    async with watching(world) as (_, snapshots, decisions):
        await eventually(lambda: _states(snapshots["elsewhere"]) == {"serving"})
        assert all(worker.opaque for worker in snapshots["elsewhere"].workers)
        status, _ = await world.ask("black-box")
        assert status == 200
        await eventually(lambda: [each for each in decisions if each.pool == "elsewhere"])
        decision = next(each for each in decisions if each.pool == "elsewhere")
        assert decision.runs[0].candidates.opaque == ("front-0", "front-1")
        assert "by own counts" in decision.reason
        world.fronts[0].healthy = False
        await eventually(lambda: _states(snapshots["elsewhere"]) == {"serving", "not_ready"})

        async def is_spared() -> bool:
            before = [front.asked.count("/v1/chat/completions") for front in world.fronts]
            assert (await world.ask("black-box"))[0] == 200
            return [front.asked.count("/v1/chat/completions") for front in world.fronts] == [before[0], before[1] + 1]

        # As above.
        await eventually(is_spared)
        assert await is_spared()
        world.fronts[0].healthy = True
        await eventually(lambda: _states(snapshots["elsewhere"]) == {"serving"})


async def test_endpoints_of_a_file_serve_and_the_doctor_says_what_is_read(world: World) -> None:
    async with watching(world) as (seen, snapshots, _decisions):
        await eventually(lambda: _states(snapshots["file"]) == {"serving"})
        assert (await world.ask("llama-file"))[0] == 200
        text = world.file.read_text()
        world.file.write_text("engines: [")
        await eventually(lambda: "(line 1" in _problem(snapshots["file"]))
        world.put_pod()
        await eventually(lambda: _states(snapshots["cluster"]) == {"serving"})
        # The doctor goes by the configuration that is stored; these services were given a file.
        bucket = await seen.js.create_key_value(bucket=CONFIG_BUCKET)  # pyright: ignore[reportUnknownMemberType] - nats-py
        await bucket.put(CONFIG_KEY, world.stack.config.read_bytes())

        async def told() -> bool:
            """By any replica that the doctor heard in its time."""
            said = StringIO()
            await doctor(world.stack.nats.url, Console(file=said, width=300))
            named = "pool cluster: the Kubernetes cluster is read and names 2 endpoints" in said.getvalue()
            return named and "not valid YAML" in said.getvalue()

        await eventually(told)
        assert (await world.ask("llama-file"))[0] == 200, "the last good list stays"
        world.file.write_text(text)
        await eventually(lambda: not _problem(snapshots["file"]))
