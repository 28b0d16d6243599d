"""The engine in real time: one asyncio task runs its passes when their time has come."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from pointsman_simulator.engine import EngineModel, PassResult
from pointsman_simulator.sequence import Sequence

_SHORTEST_SLEEP_S: Final = 0.001
"""Passes shorter than this (high speed-up) are run in batches: timers are no finer."""


class TokenStream:
    """Tokens of one sequence as they are generated: how many became ready since the last look."""

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self._ready = 0
        self._done = False
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for_tokens(self) -> tuple[int, bool]:
        """Wait for news. Returns new tokens (at least 1) and whether the sequence is finished."""
        if not self._ready:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        ready, self._ready = self._ready, 0
        return ready, self._done

    def add_tokens(self, tokens: int, done: bool) -> None:
        self._ready += tokens
        self._done = done
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class RealTimeEngine:
    """Owns the engine and the mapping of its time (ms) to the wall clock."""

    def __init__(self, engine: EngineModel, on_pass: Callable[[PassResult], None]) -> None:
        self.engine = engine
        self._on_pass = on_pass
        self._streams: dict[Sequence, TokenStream] = {}
        self._work = asyncio.Event()
        self._slowness = 1.0
        self._wall_origin = time.perf_counter()
        self._engine_origin = 0.0

    def now(self) -> float:
        return self._engine_origin + (time.perf_counter() - self._wall_origin) * 1000 / self._slowness

    def slow_down(self, factor: float) -> None:
        """From now on engine time passes `factor` (> 0) times slower than the wall clock."""
        self._engine_origin, self._wall_origin = self.now(), time.perf_counter()
        self._slowness = factor

    def submit_sequence(self, sequence: Sequence) -> TokenStream:
        """Queue a sequence. ValueError when it can never fit."""
        self.engine.submit_sequence(sequence, self.now())
        stream = self._streams[sequence] = TokenStream(sequence)
        self._work.set()
        return stream

    def close(self, stream: TokenStream) -> None:
        """The reader is gone: abort the sequence if it is unfinished."""
        if self._streams.pop(stream.sequence, None) is not None:
            self.engine.drop_sequence(stream.sequence)

    async def run(self) -> None:
        """Run passes for ever."""
        engine = self.engine
        while True:
            if engine.pass_ends_at is None and engine.begin_pass(self.now()) is None:
                await self._wait_for_work()
                continue
            while (ends_at := engine.pass_ends_at) is not None and ends_at <= self.now():
                self._deliver(engine.finish_pass())
                engine.begin_pass(ends_at)
            if ends_at is not None:
                wait_s = (ends_at - self.now()) * self._slowness / 1000
                await asyncio.sleep(max(wait_s, _SHORTEST_SLEEP_S))

    async def _wait_for_work(self) -> None:
        """Until a sequence comes, or one's blocks are on the device."""
        self._work.clear()
        fetched_in = (self.engine.link.next_at - self.now()) * self._slowness / 1000
        try:
            async with asyncio.timeout(None if fetched_in == math.inf else max(fetched_in, _SHORTEST_SLEEP_S)):
                await self._work.wait()
        except TimeoutError:
            pass

    def _deliver(self, result: PassResult) -> None:
        self._on_pass(result)
        for sequence in result.emitted:
            stream = self._streams.get(sequence)
            if stream is not None:
                done = sequence.generated == sequence.output_tokens
                if done:
                    del self._streams[sequence]
                stream.add_tokens(1, done)
