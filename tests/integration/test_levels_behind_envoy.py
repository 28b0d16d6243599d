"""A promised time between tokens holds for requests that come through Envoy, too."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import pytest_asyncio

from pointsman_cli.stack import envoy
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_testing import Processes, eventually
from pointsman_testing.envoy_process import start_envoy
from pointsman_testing.observer import observing
from pointsman_testing.stack import EngineProcess, Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(420)]

SERVED_AS = "llama-3.1-8b"
HELD = {"class": "chat", "itl": "30s"}
"""A time that a busy machine keeps."""
STRICT_MS = 90
"""The engine `slow` takes 115 ms for a token, `fast` 6 ms."""


class World:
    """Envoy before a gateway of two pools: `slow`, whose engine takes long for each token, and `fast`."""

    def __init__(self, stack: Stack, door: str, http: aiohttp.ClientSession, ends: list[ResponseCompleted]) -> None:
        self.stack = stack
        self.ends = ends
        self._door = door
        self._http = http
        self._numbers = count()

    async def send(
        self, model: str, request_id: str = "", *, words: int = 20, usage: bool = True, itl_ms: int | None = None
    ) -> tuple[int, Mapping[str, str], str]:
        """Status, headers and body of an answer. `itl_ms`: the client's own wish."""
        message = {"role": "user", "content": f"{next(self._numbers)} " * words}
        body: dict[str, Any] = {"model": model, "messages": [message], "max_tokens": 16, "stream": True}
        if usage:
            body["stream_options"] = {"include_usage": True}
        headers = {"x-request-id": request_id} if request_id else {}
        if itl_ms is not None:
            headers["x-slo-tpot-ms"] = str(itl_ms)
        async with self._http.post(f"{self._door}/v1/chat/completions", json=body, headers=headers) as answer:
            return answer.status, answer.headers, await answer.text()

    async def end_of(self, request_id: str) -> ResponseCompleted:
        await eventually(lambda: any(each.request_id == request_id for each in self.ends), timeout=30)
        return next(each for each in self.ends if each.request_id == request_id)

    async def learn_times(self) -> None:
        """Send requests until the times of both pools are known."""

        async def send_each(model: str) -> None:
            """One after the other: prompts that share a pass are one observation."""
            for words in (10, 400, 900, 1500):
                await self.send(model, words=words)

        async def known() -> bool:
            await asyncio.gather(send_each("held"), send_each("spare"))
            told = {
                each.target.pool: each.promise.predicted_itl_ms
                for each in self.ends
                if each.target is not None and each.promise is not None and each.promise.predicted_itl_ms is not None
            }
            return told.get("fast", math.inf) < STRICT_MS < told.get("slow", 0.0)

        await eventually(known, timeout=240)


@pytest_asyncio.fixture(loop_scope="module")
async def world(stacks: StackFactory, processes: Processes, tmp_path: Path) -> AsyncIterator[World]:
    engines = {"slow": EngineProcess("slow", processes, tmp_path, 0.05)}
    engines["fast"] = EngineProcess("fast", processes, tmp_path, 1.0)
    for engine in engines.values():
        await engine.start()
    strict = {"class": "strict", "itl": f"{STRICT_MS}ms"}
    changes: dict[str, Any] = {
        "pools": {
            "llama-8b": {"models": [SERVED_AS, "sql-lora"], "loras": ["sql-lora"]},
            **{name: {"discovery": "static", "engines": [engine.url]} for name, engine in engines.items()},
        },
        "models": {
            "held": {"pool": "slow", "served_as": SERVED_AS, "slo": HELD},
            "refused": {"pool": "slow", "served_as": SERVED_AS, "slo": {**strict, "late": "refuse"}},
            "moved": {
                "pool": "slow", "served_as": SERVED_AS, "fallbacks": ["spare"], "slo": {**strict, "late": "spill"},
            },
            "spare": {"pool": "fast", "served_as": SERVED_AS, "slo": HELD},
        },
        "postprocessing": [],
    }  # fmt: skip
    async with stacks.start(engines=0, changes=changes) as stack:
        adapter = processes.fork("pointsman-epp-adapter", env={**stack.env, "POINTSMAN_PORT": "0"})
        await adapter.wait_ready()
        url = next(str(line["url"]) for line in adapter.log_lines() if line["event"] == "serving")
        addresses = [("127.0.0.1", urlsplit(engine.url).port or 0) for engine in engines.values()]
        document = envoy.document(("127.0.0.1", 0), [("127.0.0.1", int(url.rpartition(":")[2]))], addresses)
        executable = await asyncio.to_thread(envoy.executable)
        door = await start_envoy(processes, executable, document, tmp_path)
        timeout = aiohttp.ClientTimeout(total=120)
        async with observing(stack.nats.url) as seen, aiohttp.ClientSession(timeout=timeout) as http:
            made = World(stack, door, http, seen.listen(ResponseCompleted, ANY))

            async def serves() -> bool:
                return {(await made.send(name))[0] for name in ("held", "spare")} == {200}

            await eventually(serves, timeout=60)
            yield made


@pytest.mark.requirement("SLO-1", "SLO-2", "SLO-3")
async def test_a_promised_time_between_tokens_is_predicted_kept_spilled_and_refused_behind_envoy(world: World) -> None:
    assert (await world.send("held", "kept"))[0] == 200
    assert (await world.send("held", "counted", usage=False, itl_ms=40_000))[0] == 200
    for name, most_ms in (("kept", 30_000.0), ("counted", 40_000.0)):
        end = await world.end_of(name)
        assert end.promise is not None
        assert (end.promise.service_class, end.promise.itl_ms, end.kept) == ("chat", most_ms, True), end
    await world.learn_times()
    # One in 2 s tests the prediction.
    names = [f"refused-{number}" for number in range(4)]
    answers = await asyncio.gather(*(world.send("refused", name) for name in names))
    name, (status, headers, text) = next(
        (name, answer) for name, answer in zip(names, answers, strict=True) if answer[0] != 200
    )
    assert (status, json.loads(text)["error"]["code"]) == (429, "slo_unattainable"), text
    assert "ms are predicted between tokens; the service level 'strict' is 90 ms" in text
    assert int(headers["retry-after"]) >= 1
    refused = await world.end_of(name)
    assert refused.promise is not None
    assert (refused.outcome, refused.model, refused.promise.service_class) == ("rejected", "refused", "strict")
    assert (await world.send("moved", "moved"))[0] == 200
    moved = await world.end_of("moved")
    assert moved.promise is not None
    assert moved.target is not None
    assert (moved.target.pool, moved.promise.spilled_from) == ("fast", "slow")
    assert moved.promise.predicted_itl_ms is not None
    assert moved.kept is not None

    async def explained(request_id: str, words: str) -> bool:
        code, text = await world.stack.command("explain", request_id)
        return code == 0 and words in " ".join(text.split())

    await eventually(lambda: explained("kept", "service level chat: promised 30000 ms between tokens"), timeout=30)
    await eventually(lambda: explained(name, "promised 90 ms between tokens · refused"), timeout=30)
