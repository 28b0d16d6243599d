"""The ZeroMQ sockets of an engine that publishes the changes of its cache.

Source: vLLM `distributed/kv_events.py`: PUB sends `[topic, number, payload]`, ROUTER answers `[b"", first number]` with
`[b"", topic, number, payload]` for each batch still kept and ends with number -1; a payload is the MessagePack of `[ts,
events, data_parallel_rank]`. Each rank binds the port after that of the rank before it.
"""

import asyncio
import time
from collections import deque
from typing import Final

import msgspec
import zmq
import zmq.asyncio

ANY_PORT: Final = ":*"
PORTS_TRIED: Final = 20
"""First ports, until enough are free after one of them."""
KEPT: Final = 10_000
"""Batches that can be sent again, as vLLM's `buffer_steps`."""
_END: Final = (-1).to_bytes(8, "big", signed=True)


class KvPublisher:
    """The publisher of one rank; it sends kept batches again on request."""

    def __init__(self, live: str, replay: str | None, rank: int = 0) -> None:
        """Binds both endpoints; a port `*` is any free one. Raises zmq.ZMQError."""
        self._rank: Final = rank
        self._sending: Final = zmq.Context()
        self._live: Final = self._sending.socket(zmq.PUB)
        self._live.setsockopt(zmq.SNDHWM, 0)
        self._answers: Final = zmq.asyncio.Context()
        self._router: Final = self._answers.socket(zmq.ROUTER)
        self._number = 0
        self._kept: Final[deque[tuple[bytes, bytes]]] = deque(maxlen=KEPT)
        self._answering: asyncio.Task[None] | None = None
        self.replay: str | None = None
        try:
            self._live.bind(live)
            if replay is not None:
                self._router.bind(replay)
                self.replay = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        except zmq.ZMQError:
            self.close()
            raise
        self.live: Final = self._live.getsockopt_string(zmq.LAST_ENDPOINT)

    def start(self) -> None:
        """Answer requests for earlier batches."""
        if self.replay is not None:
            self._answering = asyncio.get_running_loop().create_task(self._answer())

    def publish_batch(self, events: list[list[object]]) -> None:
        """Publish one batch; without events none is sent."""
        if not events:
            return
        number = self._number.to_bytes(8, "big")
        payload = msgspec.msgpack.encode([time.time(), events, self._rank])
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
            again = [[client, b"", b"", *batch] for batch in self._kept if batch[0] >= first]
            for frames in [*again, [client, b"", b"", _END, b""]]:
                await self._router.send_multipart(frames)  # pyright: ignore[reportUnknownMemberType] - as above


def bind_publishers(live: str, replay: str | None, ranks: int) -> tuple[KvPublisher, ...]:
    """A publisher for each rank, each at the ports after those of the one before; a port `*` is any with enough
    free ones after it. Raises zmq.ZMQError."""
    tries = PORTS_TRIED if ANY_PORT in live + (replay or "") else 1
    while True:
        bound = list[KvPublisher]()
        tries -= 1
        try:
            bound.append(KvPublisher(live, replay))
            first = bound[0]
            for rank in range(1, ranks):
                again = None if first.replay is None else _shifted(first.replay, rank)
                bound.append(KvPublisher(_shifted(first.live, rank), again, rank))
        except zmq.ZMQError:
            for each in bound:
                each.close()
            if not tries:
                raise
        else:
            return tuple(bound)


def _shifted(endpoint: str, by: int) -> str:
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) + by}"
