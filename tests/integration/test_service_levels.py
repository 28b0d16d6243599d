"""Service levels through every process: from the profile to the event of the end, the metrics and `explain`."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.answered import answered
from pointsman_testing.observer import observing
from pointsman_testing.stack import Stack, StackFactory

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

    await eventually(explained, timeout=30)
