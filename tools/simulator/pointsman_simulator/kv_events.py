"""What the engine's cache stores and drops, told over ZeroMQ as vLLM tells it.

Source: vLLM `distributed/kv_events.py`: PUB sends `[topic, number, payload]`, ROUTER answers `[b"", first number]` with
those still kept and ends with number -1; a payload is the MessagePack of `[ts, events, data_parallel_rank]`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from pointsman_simulator.tokens import Tokens

KEPT: Final = 10_000
"""Batches that can be sent again, as vLLM's `buffer_steps`."""
_END: Final = (-1).to_bytes(8, "big", signed=True)


@dataclass(slots=True)
class _Block:
    parent: int | None
    tokens: list[int]
    lora: str | None
    salt: str | None
    """Of the first block of a prompt; the others are told apart by their parent."""
    users: int = 0
    cached: bool = False


class BlockBook:
    """Remembers what is in each block, for as long as a sequence uses it or the cache holds it."""

    def __init__(self, block_size: int) -> None:
        self._block_size: Final = block_size
        self._blocks: Final[dict[int, _Block]] = {}
        self._left: Final[list[int]] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def opened(self, names: Sequence[int], tokens: Tokens, lora: str | None, salt: str | None) -> None:
        """A sequence with these blocks begins."""
        size = self._block_size
        parent: int | None = None
        for position, name in enumerate(names):
            block = self._blocks.get(name)
            if block is None:
                ids: list[int] = tokens[position * size : (position + 1) * size].tolist()
                block = self._blocks[name] = _Block(parent, ids, lora, salt if parent is None else None)
            block.users += 1
            parent = name

    def closed(self, names: Sequence[int]) -> None:
        """It ended."""
        for name in names:
            block = self._blocks.get(name)
            if block is not None:
                block.users -= 1
                self._left.append(name)

    def events(self, stored: Sequence[int], removed: Sequence[int]) -> list[list[object]]:
        """What the cache's changes are as events; blocks that follow each other share one."""
        events: list[list[object]] = []
        gone = [name for name in removed if name in self._blocks]
        if gone:
            events.append(["BlockRemoved", gone, "GPU"])
        for name in gone:
            self._blocks[name].cached = False
            self._left.append(name)
        run: list[int] = []
        for name in stored:
            block = self._blocks.get(name)
            if block is None:
                continue
            block.cached = True
            if run and block.parent != run[-1]:
                events.append(self._stored(run))
                run = []
            run.append(name)
        if run:
            events.append(self._stored(run))
        for name in self._left:
            block = self._blocks.get(name)
            if block is not None and not block.users and not block.cached:
                del self._blocks[name]
        self._left.clear()
        return events

    def _stored(self, run: list[int]) -> list[object]:
        blocks = [self._blocks[name] for name in run]
        first = blocks[0]
        tokens = [token for block in blocks for token in block.tokens]
        keys = [[key for key in (block.lora, block.salt) if key is not None] or None for block in blocks]
        lora_id = None if first.lora is None else 1
        return ["BlockStored", run, first.parent, tokens, self._block_size, lora_id, "GPU", first.lora, keys]


class KvPublisher:
    """The publisher of one engine, and what it sends again on request."""

    def __init__(self, live: str, replay: str | None) -> None:
        """Binds both endpoints; a port `*` is any free one. Raises zmq.ZMQError."""
        self._sending: Final = zmq.Context()
        self._live: Final = self._sending.socket(zmq.PUB)
        self._live.setsockopt(zmq.SNDHWM, 0)
        self._live.bind(live)
        self._answers: Final = zmq.asyncio.Context()
        self._router: Final = self._answers.socket(zmq.ROUTER)
        self.live: Final = self._live.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay: str | None = None
        if replay is not None:
            self._router.bind(replay)
            self.replay = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._number = 0
        self._kept: Final[deque[tuple[bytes, bytes]]] = deque(maxlen=KEPT)
        self._answering: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Answer requests for what was sent before."""
        if self.replay is not None:
            self._answering = asyncio.get_running_loop().create_task(self._answer())

    def publish(self, events: list[list[object]]) -> None:
        """One batch; nothing is sent for none."""
        if not events:
            return
        number = self._number.to_bytes(8, "big")
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._number += 1
        self._kept.append((number, payload))
        self._live.send_multipart([b"", number, payload])  # pyright: ignore[reportUnknownMemberType] - its Sequence has no type

    def close(self) -> None:
        """Stop at once."""
        if self._answering is not None:
            self._answering.cancel()
        self._live.close(linger=0)
        self._router.close(linger=0)
        self._sending.destroy(linger=0)
        self._answers.destroy(linger=0)

    async def _answer(self) -> None:
        while True:
            client, _, first = await self._router.recv_multipart()
            again = [[client, b"", *batch] for batch in self._kept if batch[0] >= first]
            for frames in [*again, [client, b"", _END, b""]]:
                await self._router.send_multipart(frames)  # pyright: ignore[reportUnknownMemberType] - as above
