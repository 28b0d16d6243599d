"""One of two vLLM is killed while it streams: every answer comes whole, as one engine would have given it."""

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
import pytest
import pytest_asyncio
from pydantic import JsonValue

from pointsman_contracts.response import ResponseCompleted
from pointsman_testing import Processes, eventually
from pointsman_testing.engine_stack import EngineStack, gateway_before
from pointsman_testing.observer import observing
from pointsman_testing.real_engine import MODEL, POOL, RealEngine

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.ours,
    pytest.mark.alone,
    pytest.mark.usefixtures("room"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(2400),
]

STREAMS: Final = 64
TOKENS: Final = 200
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
PATHS: Final = (CHAT, COMPLETIONS, "/v1/messages", "/v1/responses")
WHOLE: Final = {"length", "max_tokens", "end_turn", "completed", "incomplete"}
ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
Body = dict[str, JsonValue]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two(environment: Path, model: Path, processes: Processes) -> AsyncIterator[list[RealEngine]]:
    """Engines that the test may kill."""
    folder = model.parent / "mortal"
    folder.mkdir()
    engines = [
        RealEngine(name, processes, folder, environment=environment, model=model, options=("--max-num-seqs", "64"))
        for name in ("engine-1", "engine-2")
    ]
    await asyncio.gather(*(each.start() for each in engines))
    yield engines
    for each in engines:
        each.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(two: list[RealEngine], model: Path, processes: Processes) -> AsyncIterator[EngineStack]:
    changes: dict[str, JsonValue] = {"profiles": {"standard": {"resume": "text"}}}
    async with gateway_before(two, MODEL, model, processes, model.parent / "mortal", changes) as stack:
        yield stack


def asked(number: int) -> tuple[str, Body]:
    """Chats, completions, messages and responses in turn."""
    text = f"Request {number}: " + " ".join(f"word{(number * 31 + place) % 977}" for place in range(20))
    what: Body = {"model": MODEL, "temperature": 0, "stream": True}
    chat: JsonValue = [{"role": "user", "content": text}]
    match PATHS[number % len(PATHS)]:
        case "/v1/messages" as path:
            return path, {**what, "max_tokens": TOKENS, "messages": chat}
        case "/v1/responses" as path:
            return path, {**what, "max_output_tokens": TOKENS, "input": text}
        case path:
            what |= {"max_tokens": TOKENS, "ignore_eos": True, "stream_options": {"include_usage": True}}
            return path, {**what, **({"messages": chat} if path == CHAT else {"prompt": text})}


async def streamed(http: aiohttp.ClientSession, url: str, number: int, begun: list[int]) -> tuple[str, Body, str]:
    """The text, the usage and the reasons of the end of a stream; an error of it stands in the reasons."""
    path, body = asked(number)
    text, usage, ends = "", Body(), ""
    async with http.post(url + path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = cast("dict[str, Any]", json.loads(line[6:]))
            if "error" in event or event.get("type") == "error":
                ends += f"error: {event}"
            kind = event.get("type")
            inner: dict[str, Any] = event.get("response") or event.get("message") or {}
            counts: Body = event.get("usage") or inner.get("usage") or {}
            usage |= counts
            delta: Any = event.get("delta") or {}
            if kind == "response.output_text.delta":
                text += delta
            elif kind in ("content_block_delta", "message_delta"):
                text += delta.get("text") or ""
                ends += delta.get("stop_reason") or ""
            elif kind in ENDS:
                ends += inner["status"]
            choices: list[dict[str, Any]] = event.get("choices") or []
            for choice in choices:
                said: dict[str, Any] = choice.get("delta") or {}
                text += choice.get("text") or said.get("content") or ""
                ends += choice.get("finish_reason") or ""
            begun.append(number)
    return text, usage, ends


async def recompute(http: aiohttp.ClientSession, url: str, lengths: list[int]) -> float:
    """Median time, in seconds, in which an engine answers prompts of so many tokens with one token, all at once."""

    async def one(number: int, length: int) -> float:
        ids: list[JsonValue] = [40 + (number * 17 + place * place) % 300 for place in range(length)]
        began = time.monotonic()
        async with http.post(url + COMPLETIONS, json={"model": MODEL, "prompt": ids, "max_tokens": 1}) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
        return time.monotonic() - began

    return statistics.median(await asyncio.gather(*(one(*each) for each in enumerate(lengths))))


async def test_no_stream_is_lost_with_its_engine(
    gateway: EngineStack, two: list[RealEngine], http: aiohttp.ClientSession, measured: dict[str, JsonValue]
) -> None:
    alone = await asyncio.gather(*(streamed(http, two[1].url, number, []) for number in range(STREAMS)))
    # Otherwise the prompts would be sent to the engine that has them in its cache.
    await gateway.empty_caches()
    async with observing(gateway.nats.url) as seen:
        ends = seen.listen(ResponseCompleted, POOL.pool)
        begun: list[int] = []
        streams = [asyncio.create_task(streamed(http, gateway.door, number, begun)) for number in range(STREAMS)]
        # In the middle of most of them.
        await eventually(lambda: len(begun) > STREAMS * TOKENS // 3, timeout=600)
        two[0].process.kill()
        answers = await asyncio.gather(*streams)
        await eventually(lambda: len(ends) >= STREAMS)
    seams = [seam for end in ends for seam in end.seams]
    again = await recompute(http, two[1].url, [seam.computed_again for seam in seams])
    counted = sum(_counts(one[1]) == _counts(other[1]) for one, other in zip(answers, alone, strict=True))
    equal = [one[0] == other[0] for one, other in zip(answers, alone, strict=True)]
    by_api = {path: equal[number :: len(PATHS)] for number, path in enumerate(PATHS)}
    forms = Counter((end.api, seam.form) for end in ends for seam in end.seams)
    measured["resumed-streams"] = {
        "streams": STREAMS,
        "tokens of each, at most": TOKENS,
        "complete": sum(end in WHOLE for _, _, end in answers),
        "seams": len(seams),
        "forms": {f"{api}, {form}": count for (api, form), count in sorted(forms.items())},
        "equal texts": {path: sum(some) for path, some in by_api.items()},
        "equal usage": counted,
        "gap, ms (median)": round(statistics.median(seam.gap_ms for seam in seams), 1) if seams else None,
        "recomputation alone, ms (median)": round(again * 1000, 1),
        "tokens computed again": sum(seam.computed_again for seam in seams),
    }
    assert {end for _, _, end in answers} <= WHOLE
    assert len(seams) > STREAMS // 8
    assert {end.outcome for end in ends} == {"ok"}
    # The engine cuts the text of messages and responses into tokens anew: what follows may differ.
    exact = [number for number in range(STREAMS) if PATHS[number % len(PATHS)] in (CHAT, COMPLETIONS)]
    assert all(equal[number] for number in exact)
    assert all(_counts(answers[number][1]) == _counts(alone[number][1]) for number in exact)
    assert {form for (api, form) in forms if api in ("chat.completions", "completions")} <= {"exact"}


def _counts(usage: Body) -> tuple[JsonValue, ...]:
    """Tokens of the prompt and of the answer."""
    return tuple([usage.get(name) for name in ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")])
