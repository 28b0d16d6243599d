"""A load generator with a low cost of its own: raw HTTP/1.1 over asyncio protocols, requests as prepared bytes.

Closed loop: each connection sends its next request when the answer is complete. Open loop: requests start at fixed
times regardless of the server, on the first free connection, and latency counts from the time each was due.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools


@dataclass
class Samples:
    """Latencies in seconds of the requests that were answered with 200, and how many weren't."""

    latencies: list[float] = field(default_factory=list[float])
    first_bytes: list[float] = field(default_factory=list[float])
    failures: dict[str, int] = field(default_factory=dict[str, int])
    elapsed: float = 0.0

    def fail(self, reason: str) -> None:
        self.failures[reason] = self.failures.get(reason, 0) + 1

    @property
    def failed(self) -> int:
        """Requests that weren't answered with 200, and stand in no latency."""
        return sum(self.failures.values())

    @property
    def rate(self) -> float:
        """Answered requests a second."""
        return len(self.latencies) / self.elapsed if self.elapsed else 0.0

    def quantile(self, q: float) -> float:
        """In milliseconds; NaN when nothing was answered."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1e3 if ordered else float("nan")


def prepare(url: str, body: bytes, headers: Sequence[str] = ()) -> bytes:
    """The bytes of one POST request; `headers` are lines beside the usual ones."""
    parts = urlsplit(url)
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: */*\r\nContent-Length: {len(body)}\r\n"
    )
    return "\r\n".join([head.rstrip(), *headers, "", ""]).encode() + body


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[int] | None = None
        self.first_byte = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self.first_byte:
            self.first_byte = time.perf_counter()
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        done, self._done = self._done, None
        if done is not None and not done.done():
            done.set_result(self._parser.get_status_code())
        self._parser = httptools.HttpResponseParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("closed by the server"))

    @property
    def open(self) -> bool:
        return self._transport is not None

    async def send(self, request: bytes) -> int:
        """Send one request; the status once the whole answer is here. ConnectionError when the peer closes."""
        if self._transport is None:
            raise ConnectionResetError("closed")
        self.first_byte = 0.0
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(url: str) -> Connection:
    """A new connection."""
    parts = urlsplit(url)
    _, connection = await asyncio.get_running_loop().create_connection(
        Connection, parts.hostname or "127.0.0.1", parts.port or 80
    )
    return connection


async def _one(connection: Connection, url: str, request: bytes, due: float, samples: Samples) -> Connection:
    try:
        status = await connection.send(request)
    except ConnectionError as error:
        samples.fail(type(error).__name__)
        return await connect(url)
    if status == 200:
        samples.latencies.append(time.perf_counter() - due)
        samples.first_bytes.append(connection.first_byte - due)
    else:
        samples.fail(str(status))
    return connection


async def closed_loop(url: str, body: bytes, connections: int, seconds: float) -> Samples:
    """`connections` clients, each with one request in flight, for `seconds`."""
    samples = Samples()
    request = prepare(url, body)
    started = time.perf_counter()

    async def client() -> None:
        connection = await connect(url)
        while (now := time.perf_counter()) < started + seconds:
            connection = await _one(connection, url, request, now, samples)
        connection.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    samples.elapsed = time.perf_counter() - started
    return samples


async def open_loop(url: str, body: bytes, rate: float, seconds: float, connections: int = 64) -> Samples:
    """`rate` requests a second at fixed times for `seconds`, on at most `connections` connections."""
    samples = Samples()
    request = prepare(url, body)
    free: deque[Connection] = deque([await connect(url) for _ in range(connections)])
    available = asyncio.Semaphore(connections)
    started = time.perf_counter()
    tasks: set[asyncio.Task[None]] = set()

    async def fire(due: float) -> None:
        async with available:
            connection = free.popleft()
            free.append(await _one(connection, url, request, due, samples))

    for index in range(int(rate * seconds)):
        due = started + index / rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(fire(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    samples.elapsed = time.perf_counter() - started
    for connection in free:
        connection.close()
    return samples
