"""Service levels through every process: from the profile to the event of the end, the metrics and `explain`."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from pointsman_cli.stack import envoy
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_testing import Processes, eventually
from pointsman_testing.answered import answered
from pointsman_testing.envoy_process import start_envoy
from pointsman_testing.mock_providers import MockProvider
from pointsman_testing.observer import observing
from pointsman_testing.stack import EngineProcess, Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


@pytest_asyncio.fixture(loop_scope="module")
async def stack(stacks: StackFactory) -> AsyncIterator[Stack]:
    level = {"ttft": "60s", "class": "interactive", "late": "refuse"}
    eager = {"ttft": "1ms", "class": "eager", "late": "serve"}
    changes: dict[str, Any] = {
        "profiles": {
            "standard": {"request": ["scheduler"], "slo": level},
            "eager": {"request": ["scheduler"], "slo": eager},
        },
        "profile-picker": {
            "use": "rules",
            "rules": [{"when": 'headers["x-level"] == "eager"', "profile": "eager"}],
            "default": "standard",
        },
        "postprocessing": [],
    }
    async with stacks.start(engines=1, changes=changes) as started:
        yield started


async def ask(stack: Stack, **headers: str) -> tuple[int, str]:
    body = {"model": "llama-3.1-8b", "prompt": "Count", "max_tokens": 4, "stream": True}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
        http.post(f"{stack.door}/v1/completions", json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.requirement("SLO-1")
async def test_explain_prints_what_was_promised_predicted_and_kept(stack: Stack) -> None:
    async with observing(stack.nats.url) as seen:
        ends = seen.listen(ResponseCompleted, ANY)
        status, text = await answered(lambda: ask(stack, **{"x-request-id": "kept"}))
        assert status == 200, text
        # A client's header asks for no less than the level has.
        assert (await ask(stack, **{"x-request-id": "missed", "x-level": "eager", "x-slo-ttft-ms": "0.001"}))[0] == 200
        await eventually(lambda: {"kept", "missed"} <= {each.request_id for each in ends})
        kept, missed = (next(each for each in ends if each.request_id == name) for name in ("kept", "missed"))
    assert kept.promise is not None
    assert (kept.promise.service_class, kept.promise.ttft_ms, kept.kept) == ("interactive", 60_000.0, True)
    assert missed.promise is not None
    assert (missed.promise.service_class, missed.promise.ttft_ms, missed.kept) == ("eager", 1.0, False)

    async def explained() -> bool:
        code, text = await stack.command("explain", "kept")
        words = " ".join(text.split())
        return code == 0 and "service level interactive: promised 60000 ms to the first token" in words

    await eventually(explained)


SERVED_AS = "llama-3.1-8b"
BURST = 24
"""Prompts that come at once to an engine that computes about two of them in the time that their level allows."""
LENGTHS = (10, 400, 900, 1500)
"""Words of the prompts that an engine's times are learnt from."""


@pytest_asyncio.fixture(loop_scope="module")
async def two_pools(stacks: StackFactory, processes: Processes, tmp_path: Path) -> AsyncIterator[Stack]:
    """The pool `busy` has a slow engine, the pool `free` a fast one, which the models of `busy` may fall back to."""
    # Times of engines are longer than what a busy machine adds to them.
    engines = {"busy": EngineProcess("busy", processes, tmp_path, 0.1)}
    engines["free"] = EngineProcess("free", processes, tmp_path, 0.5)
    for engine in engines.values():
        await engine.start()
    key = tmp_path / "key"
    key.write_text("provider-key\n")
    level = {"ttft": "4s", "class": "interactive"}
    changes: dict[str, Any] = {
        "pools": {
            "llama-8b": {"models": [SERVED_AS, "sql-lora"], "loras": ["sql-lora"]},
            **{name: {"discovery": "static", "engines": [engine.url]} for name, engine in engines.items()},
        },
        "models": {
            "spilled": {
                "pool": "busy", "served_as": SERVED_AS, "fallbacks": ["spare"], "slo": {**level, "late": "spill"},
            },
            "served": {"pool": "busy", "served_as": SERVED_AS, "slo": {**level, "late": "serve"}},
            "spare": {"pool": "free", "served_as": SERVED_AS, "slo": {**level, "late": "serve"}},
            "spilled-far": {
                "pool": "busy", "served_as": SERVED_AS, "fallbacks": ["far"], "slo": {**level, "late": "spill"},
            },
            "far": {"provider": "openai", "served_as": "gpt-5", "slo": {"ttft": "1ms", "class": "outside"}},
        },
    }  # fmt: skip
    async with MockProvider("openai", key="provider-key") as provider:
        changes["providers"] = {"openai": {"kind": "openai", "base_url": provider.url, "credential": f"file:{key}"}}
        async with stacks.start(engines=0, changes=changes) as started:
            yield started


class Sender:
    """Sends prompts that share no prefix."""

    def __init__(self, stack: Stack, http: aiohttp.ClientSession) -> None:
        self._stack = stack
        self._http = http
        self._numbers = count()

    async def send(self, model: str, words: int) -> tuple[int, str | None]:
        """The status, and the model that answered."""
        message = {"role": "user", "content": f"{next(self._numbers)} " * words}
        body = {"model": model, "messages": [message], "max_tokens": 2, "stream": True}

        async def once() -> tuple[int, str | None]:
            async with self._http.post(f"{self._stack.door}/v1/chat/completions", json=body) as answer:
                await answer.read()
                return answer.status, answer.headers.get("x-pointsman-model")

        return await answered(once)

    async def learn_times(self, ends: list[ResponseCompleted]) -> None:
        """Send requests until both pools' times are learnt from their answers."""

        async def send_each(model: str) -> None:
            """One after the other: prompts that share a pass are one observation."""
            for words in LENGTHS:
                await self.send(model, words)

        async def times_are_known() -> bool:
            before = len(ends)
            await asyncio.gather(send_each("served"), send_each("spare"))
            await eventually(lambda: len(ends) >= before + 2 * len(LENGTHS))
            known = {
                each.target.pool if each.target else ""
                for each in ends[before:]
                if each.promise is not None and each.promise.predicted_ttft_ms is not None
            }
            return known >= {"busy", "free"}

        await eventually(times_are_known, timeout=90)

    async def late(self, outcome: str) -> float:
        """Requests predicted to be late in the pool `busy`, as the scheduler's metrics have them."""
        url = self._stack.services["scheduler"][0].http_url
        async with self._http.get(f"{url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        wanted = f'pointsman_scheduler_late_total{{class="interactive",outcome="{outcome}",pool="busy"}}'
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))


@pytest.mark.requirement("SLO-3")
async def test_a_pool_that_would_be_late_spills_to_one_that_is_in_time_and_says_so(two_pools: Stack) -> None:
    timeout = aiohttp.ClientTimeout(total=120)
    async with observing(two_pools.nats.url) as seen, aiohttp.ClientSession(timeout=timeout) as http:
        ends, sender = seen.listen(ResponseCompleted, ANY), Sender(two_pools, http)
        await sender.learn_times(ends)
        began = len(ends)
        answers = await asyncio.gather(*(sender.send("spilled", 1500) for _ in range(BURST)))
        assert {status for status, _ in answers} == {200}
        spilled = sum(model == "spare" for _, model in answers)
        assert 0 < spilled < BURST, answers
        assert await sender.late("spilled") == spilled
        await eventually(lambda: len(ends) >= began + BURST)
        told = [each.promise.spilled_from for each in ends[began:] if each.promise is not None]
        assert sorted(told) == [""] * (BURST - spilled) + ["busy"] * spilled
        # Without a fallback they are served late, and counted.
        answers = await asyncio.gather(*(sender.send("served", 1500) for _ in range(BURST)))
        assert set(answers) == {(200, None)}
        assert await sender.late("served") > 0


@pytest.mark.requirement("SLO-3")
async def test_an_answer_of_a_provider_is_judged_by_the_level_that_its_request_came_with(two_pools: Stack) -> None:
    timeout = aiohttp.ClientTimeout(total=120)
    async with observing(two_pools.nats.url) as seen, aiohttp.ClientSession(timeout=timeout) as http:
        ends, sender = seen.listen(ResponseCompleted, ANY), Sender(two_pools, http)
        assert (await sender.send("far", 10))[0] == 200
        await sender.learn_times(ends)
        began = len(ends)
        answers = await asyncio.gather(*(sender.send("spilled-far", 1500) for _ in range(BURST)))
        assert {status for status, _ in answers} == {200}
        await eventually(lambda: len(ends) >= began + BURST)
    [direct] = [each for each in ends if each.model == "far" and each.promise and not each.promise.spilled_from]
    assert direct.promise is not None
    # No provider answers within 1 ms.
    assert (direct.promise.service_class, direct.promise.ttft_ms, direct.kept) == ("outside", 1.0, False)
    spilled = [each for each in ends[began:] if each.target is not None and each.target.provider == "openai"]
    assert len(spilled) == sum(model == "far" for _, model in answers) > 0
    for each in spilled:
        assert each.promise is not None
        promise = each.promise
        assert (promise.service_class, promise.ttft_ms, promise.spilled_from) == ("interactive", 4000.0, "busy")
        assert each.ttft_ms is not None
        assert each.kept is (each.ttft_ms <= 4000.0)


@pytest.mark.requirement("SLO-3")
async def test_an_answer_of_a_provider_is_judged_behind_envoy_too(
    two_pools: Stack, tmp_path: Path, processes: Processes
) -> None:
    adapter = processes.fork(
        "pointsman-epp-adapter", env={**two_pools.env, "POINTSMAN_PORT": "0", "POINTSMAN_PROVIDERS": "true"}
    )
    await adapter.wait_ready()
    url = next(str(line["url"]) for line in adapter.log_lines() if line["event"] == "serving")
    document = envoy.document(("127.0.0.1", 0), [("127.0.0.1", int(url.rpartition(":")[2]))], [("127.0.0.1", 1)])
    executable = await asyncio.to_thread(envoy.executable)
    behind = await start_envoy(processes, executable, document, tmp_path)
    body = {"model": "far", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "stream": True}
    async with observing(two_pools.nats.url) as seen, aiohttp.ClientSession() as http:
        ends = seen.listen(ResponseCompleted, ANY)

        async def asked() -> bool:
            async with http.post(f"{behind}/v1/chat/completions", json=body) as answer:
                await answer.read()
                return answer.status == 200

        await eventually(asked, timeout=60)
        await eventually(lambda: [each for each in ends if each.outcome == "ok"])
    end = next(each for each in ends if each.outcome == "ok")
    assert end.promise is not None
    assert (end.promise.service_class, end.kept) == ("outside", False)
