"""One choice of model and engine, through every process: the model-selector leaves it open, the scheduler makes it."""

from collections.abc import AsyncIterator
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from rich.console import Console

from pointsman_cli.explain.explain import story
from pointsman_contracts.cascade import AnswerConfidence
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_contracts.subjects import ANY
from pointsman_testing import Processes, eventually
from pointsman_testing.answered import answered
from pointsman_testing.observer import observing
from pointsman_testing.stack import EngineProcess, Stack, StackFactory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

SERVED_AS = "llama-3.1-8b"


@pytest_asyncio.fixture(loop_scope="module")
async def stack(stacks: StackFactory, processes: Processes, tmp_path: Path) -> AsyncIterator[Stack]:
    """`auto` is the best model under a cent: `fine` costs $1,000 a million prompt tokens, `plain` nothing."""
    engines = {name: EngineProcess(name, processes, tmp_path, 100.0) for name in ("plain", "fine")}
    for engine in engines.values():
        await engine.start()
    changes: dict[str, Any] = {
        "pools": {
            "llama-8b": {"models": [SERVED_AS, "sql-lora"], "loras": ["sql-lora"]},
            **{name: {"discovery": "static", "engines": [engine.url]} for name, engine in engines.items()},
        },
        "models": {
            "plain": {"pool": "plain", "served_as": SERVED_AS, "quality": 0.4},
            "fine": {"pool": "fine", "served_as": SERVED_AS, "quality": 0.9, "cost": {"input": 1000}},
        },
        "selectors": {
            "cheap": {
                "models": ["plain", "fine"],
                "filters": ["capable"],
                "joint": {"prefer": "best", "within": {"dollars": 0.01}},
                "fallbacks": 1,
            },
            "best": {"models": ["plain", "fine"], "filters": ["capable"], "cascade": {"length": "always"}},
            "checked": {
                "models": ["plain", "fine"],
                "filters": ["capable"],
                "cascade": {"length": "never", "check": "guard/strict"},
            },
        },
        "guards": {"strict": {"detectors": [{"use": "patterns", "patterns": {"word": [r"\w+"]}}]}},
        "profile-picker": {
            "use": "rules",
            "rules": [
                *({"when": f'headers["x-priority"] == "{name}"', "profile": name} for name in ("priority", "checked")),
                {"when": 'model == "auto"', "profile": "auto"},
            ],
            "default": "standard",
        },
        "profiles": {
            "standard": {"request": ["scheduler"]},
            "auto": {"request": ["model-selector/cheap", "scheduler"]},
            "priority": {"request": ["model-selector/best", "scheduler"]},
            "checked": {"request": ["model-selector/checked", "scheduler"]},
        },
    }
    async with stacks.start(engines=0, replicas={"guard": 1}, changes=changes) as started:
        yield started


async def ask(stack: Stack, prompt: str, **headers: str) -> tuple[int, str]:
    """The status and the answer's model."""
    body = {"model": "auto", "prompt": prompt, "max_tokens": 2}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
        http.post(f"{stack.door}/v1/completions", json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.requirement("CHOICE-1", "CHOICE-2", "CASCADE-1")
async def test_the_best_model_under_a_cent_serves_and_explain_shows_the_others(stack: Stack) -> None:
    async with observing(stack.nats.url) as seen:
        decisions = seen.listen(RequestScheduled, ANY)

        async def decided(request_id: str, prompt: str) -> RequestScheduled:
            status, text = await answered(lambda: ask(stack, prompt, **{"x-request-id": request_id}))
            assert status == 200, text
            mine = [each for each in decisions if each.request_id == request_id]
            await eventually(lambda: bool([each for each in decisions if each.request_id == request_id]))
            return (mine or [each for each in decisions if each.request_id == request_id])[-1]

        tries = count()

        async def both_can_serve() -> bool:
            """Engines of both pools are known: pools find theirs one after the other."""
            tried = await decided(f"try-{next(tries)}", "Count")
            return all(point.total is not None for point in tried.models)

        await eventually(both_can_serve)
        short = await decided("short", "Count")
        assert short.target.pool == "fine"
        assert [(point.model, point.verdict) for point in short.models] == [("fine", "chosen"), ("plain", "0.50 less")]
        assert len(short.endpoints) == 1
        long = await decided("long", "Count to a hundred, please. " * 40)
        assert long.target.pool == "plain"
        (_, dear) = long.models
        assert dear.model == "fine"
        assert dear.verdict.startswith("beyond a limit: $0.")
        assert dear.cost > 10_000_000
        console = Console(width=160, file=StringIO(), record=True)
        console.print(*story(long), sep="\n")
        page = console.export_text()
        assert "model and engine were chosen together" in page
        (row,) = [line for line in page.splitlines() if line.strip().startswith("fine ")]
        assert "beyond a limit" in row
        named = await decided_by_name(stack, seen.listen(RequestScheduled, ANY))
        assert named.models == ()
        ends = seen.listen(ResponseCompleted, ANY)
        await check_cascade(stack, decisions, ends, "priority", "ended at a limit of tokens")
        await check_cascade(stack, decisions, ends, "checked", "guard objects")


async def decided_by_name(stack: Stack, decisions: list[RequestScheduled]) -> RequestScheduled:
    """The decision of a request that names its model."""
    body = {"model": "plain", "prompt": "Count", "max_tokens": 2}

    async def once() -> tuple[int]:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{stack.door}/v1/completions", json=body, headers={"x-request-id": "named"}) as answer,
        ):
            return (answer.status,)

    assert await answered(once) == (200,)
    await eventually(lambda: bool([each for each in decisions if each.request_id == "named"]))
    return next(each for each in decisions if each.request_id == "named")


async def check_cascade(
    stack: Stack, decisions: list[RequestScheduled], ends: list[ResponseCompleted], profile: str, why: str
) -> None:
    """The plain model's answer isn't confident, so the fine one is asked: each by a decision of its own."""
    status, text = await ask(stack, "Count", **{"x-request-id": profile, "x-priority": profile})
    assert status == 200, text
    await eventually(lambda: bool([each for each in ends if each.request_id == profile]))
    (end,) = [each for each in ends if each.request_id == profile]
    assert (end.served, end.confidence) == ("fine", AnswerConfidence(verdict="last"))
    (unused,) = list(end.unused or ())
    assert (unused.served, unused.judged.why) == ("plain", why)
    # A scheduler's events and an edge's come by themselves.
    await eventually(lambda: len([each for each in decisions if each.request_id == profile]) == 2)
    mine = sorted((each.attempt, each.target.pool) for each in decisions if each.request_id == profile)
    assert mine == [(1, "plain"), (2, "fine")]
