"""A gateway of real processes with simulated engines in real time, its flight log on, under recorded traffic."""

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import orjson
from pydantic import JsonValue

from pointsman_simulator.trace import TraceRequest
from pointsman_testing.stack import POOL, Stack, StackFactory

ENGINES: Final = 3
MODEL: Final = "llama-3.1-8b"
_BLOCK_TOKENS: Final = 64
_BYTES_PER_TOKEN: Final = 4
_TIMEOUT_S: Final = 120.0
_BEAT_S: Final = 0.05
MOST_STILL_S: Final = 0.5
"""A run is given up when the machine stands still for longer: its times would say nothing of the engines."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """An engine takes `factor` times as long from a moment on."""

    after_s: float
    engine: int
    factor: float


@dataclass(slots=True)
class Sent:
    """The clients' results."""

    answered: int = 0
    failed: int = 0
    problem: str = ""
    """Of the last failure."""
    first_ms: dict[int, float] = field(default_factory=dict[int, float])
    """From sending to the first token, of each answered request by its number."""
    stood_still_s: float = 0.0
    """How long this process didn't run, and perhaps engines and gateway neither, when the run was given up for it."""


def text(request: TraceRequest, number: int) -> str:
    """A prompt whose blocks are equal where their names are, and that ends as no other does."""
    blocks = request.blocks[: request.prompt_tokens // _BLOCK_TOKENS]
    parts = [hashlib.sha256(str(name).encode()).hexdigest() * 4 for name in blocks]
    rest = (request.prompt_tokens - len(blocks) * _BLOCK_TOKENS) * _BYTES_PER_TOKEN
    own = hashlib.sha256(f"request {number}".encode()).hexdigest() * 4
    return "".join(parts) + own[:rest]


async def fly(
    factory: StackFactory,
    policy: Mapping[str, JsonValue],
    requests: Sequence[TraceRequest],
    folder: Path,
    slowdown: Slowdown | None = None,
) -> Sent:
    """Send the requests at their times to a gateway with this policy; its flight log goes to `folder`. Ends early when
    the machine stands still."""
    changes: dict[str, JsonValue] = {
        "pools": {POOL: {"models": [MODEL, "sql-lora"], "loras": ["sql-lora"], "flight": {"keep": "1GiB"}}},
        "scheduling": {"default": dict(policy)},
    }
    settings = {"POINTSMAN_FLIGHT_DIR": str(folder)}
    async with factory.start(
        changes=changes, settings=settings, engines=ENGINES, speedup=1.0, bundled=True, hop_budget=None
    ) as stack:
        disturbance = asyncio.create_task(_disturb(stack, slowdown))
        sent = await send(stack, requests, bodies(requests))
        disturbance.cancel()
        await asyncio.wait([disturbance])
    return sent


async def _disturb(stack: Stack, slowdown: Slowdown | None) -> None:
    if slowdown is not None:
        await asyncio.sleep(slowdown.after_s)
        await stack.engines[slowdown.engine].set_faults(f"slow={slowdown.factor:g}")


def bodies(requests: Sequence[TraceRequest]) -> list[bytes]:
    """The body of each request."""
    return [
        orjson.dumps(
            {
                "model": MODEL,
                "prompt": text(request, number),
                "max_tokens": request.output_tokens,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        for number, request in enumerate(requests)
    ]


async def send(stack: Stack, requests: Sequence[TraceRequest], bodies: Sequence[bytes]) -> Sent:
    """Open loop: each request leaves at its time, whatever became of those before. `bodies` are made beforehand: that
    takes seconds, in which nothing else of this process runs."""
    sent = Sent()
    headers = {"Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        began = time.perf_counter()

        async def one(number: int, at_s: float) -> None:
            await asyncio.sleep(max(0.0, began + at_s - time.perf_counter()))
            left_at = time.perf_counter()
            first_ms: float | None = None
            try:
                async with http.post(f"{stack.door}/v1/completions", data=bodies[number], headers=headers) as answer:
                    async for _ in answer.content.iter_any():
                        if first_ms is None:
                            first_ms = (time.perf_counter() - left_at) * 1000
                    if answer.status == 200 and first_ms is not None:
                        sent.answered += 1
                        sent.first_ms[number] = first_ms
                        return
                    sent.problem = f"status {answer.status}"
            except (aiohttp.ClientError, TimeoutError) as error:
                sent.problem = f"{type(error).__name__}: {error}"
            sent.failed += 1

        watching = asyncio.create_task(_stood_still())
        sending = asyncio.ensure_future(
            asyncio.gather(*(one(number, request.arrival_ms / 1000) for number, request in enumerate(requests)))
        )
        await asyncio.wait([watching, sending], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            sent.stood_still_s = watching.result()
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
        watching.cancel()
    return sent


async def _stood_still() -> float:
    """Return when this process didn't run for `MOST_STILL_S`: for how many seconds."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(_BEAT_S)
        still = time.perf_counter() - before - _BEAT_S
        if still > MOST_STILL_S:
            return still
