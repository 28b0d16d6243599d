"""The messages between Envoy and the adapter for one request, counted by a relay between them: reads of a socket,
HTTP/2 frames and gRPC messages.

The counts of frames and messages don't depend on the machine's load; those of reads hardly do, as requests are sent one
after the other.
"""

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urljoin, urlsplit

import yaml

from benchmarks.envoy.aborts import adapter_address
from benchmarks.envoy.requests import PATH, body
from benchmarks.overhead.load import closed_loop
from benchmarks.overhead.stack import Running, wait_for
from pointsman_cli.stack.envoy import document, executable
from pointsman_testing import eventually
from pointsman_testing.ports import free_port

_KINDS: Final = {
    0: "DATA", 1: "HEADERS", 3: "RST_STREAM", 4: "SETTINGS", 6: "PING", 7: "GOAWAY", 8: "WINDOW_UPDATE",
    9: "CONTINUATION",
}  # fmt: skip
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME: Final = 9
"""Bytes before a frame's content: https://datatracker.ietf.org/doc/html/rfc9113#section-4.1."""
_MESSAGE: Final = 5
"""Bytes before a gRPC message."""
READS: Final = "reads"
MESSAGES: Final = "messages"


class Wire:
    """One direction of one connection."""

    def __init__(self, counts: Counter[str], *, of_client: bool) -> None:
        self._counts = counts
        self._skip = len(_PREFACE) if of_client else 0
        self._rest = b""
        self._messages: dict[int, bytes] = {}
        """The bytes of unfinished messages, by stream."""

    def take(self, data: bytes) -> None:
        """Bytes that were read at once."""
        self._counts[READS] += 1
        data = self._rest + data
        at, self._skip = self._skip, 0
        while len(data) - at >= _FRAME:
            size = int.from_bytes(data[at : at + 3], "big")
            end = at + _FRAME + size
            if len(data) < end:
                break
            kind, stream = data[at + 3], int.from_bytes(data[at + 5 : at + _FRAME], "big")
            self._counts[_KINDS.get(kind, f"kind {kind}")] += 1
            if kind == 0:
                self._content(stream, data[at + _FRAME : end])
            at = end
        self._rest = data[at:]

    def _content(self, stream: int, data: bytes) -> None:
        data = self._messages.pop(stream, b"") + data
        while len(data) >= _MESSAGE and len(data) >= (end := _MESSAGE + int.from_bytes(data[1:_MESSAGE], "big")):
            self._counts[MESSAGES] += 1
            data = data[end:]
        if data:
            self._messages[stream] = data


class Relay:
    """Passes on every byte between Envoy and the adapter, and counts."""

    def __init__(self) -> None:
        self.of_envoy: Final[Counter[str]] = Counter()
        self.of_adapter: Final[Counter[str]] = Counter()

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncGenerator[int]:
        """Before the adapter at `host` and `port`; yields its own port."""
        open_ones: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection(host, port)
            for source, sink, wire in (
                (reader, back, Wire(self.of_envoy, of_client=True)),
                (there, writer, Wire(self.of_adapter, of_client=False)),
            ):
                task = asyncio.create_task(_pass(source, sink, wire))
                open_ones.add(task)
                task.add_done_callback(open_ones.discard)

        async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]
            for task in tuple(open_ones):
                task.cancel()
            await asyncio.gather(*open_ones, return_exceptions=True)


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter, wire: Wire) -> None:
    try:
        while data := await source.read(2**20):
            wire.take(data)
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()


@asynccontextmanager
async def relayed(running: Running, relay: Relay) -> AsyncGenerator[str]:
    """A second Envoy of the gateway, with a relay between it and the adapter; yields its URL."""
    host, _, port = adapter_address(running).rpartition(":")
    backend = urlsplit(running.direct)
    with TemporaryDirectory(prefix="pointsman-bench-") as name:
        config, admin = Path(name) / "envoy.yaml", Path(name) / "admin"
        async with relay.listening(host, int(port)) as between:
            door = ("127.0.0.1", free_port())
            engine = (backend.hostname or "", backend.port or 80)
            config.write_text(yaml.safe_dump(document(door, [("127.0.0.1", between)], [engine], trust=None)))
            command = [executable(), "--config-path", str(config), "--admin-address-path", str(admin)]
            process = subprocess.Popen(
                [*command, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]
            )
            try:
                await asyncio.to_thread(wait_for, admin, process)
                await eventually(lambda: _takes(door), timeout=30)
                yield f"http://{door[0]}:{door[1]}"
            finally:
                process.terminate()
                await asyncio.to_thread(process.wait, 30)


async def _takes(door: tuple[str, int]) -> bool:
    """Whether connections are accepted there: Envoy's admin listens earlier."""
    try:
        _, writer = await asyncio.open_connection(*door)
    except OSError:
        return False
    writer.close()
    return True


async def counts(running: Running, seconds: float) -> int:
    """Print them for documents and streams; returns how many requests failed."""
    relay = Relay()
    failed = 0
    async with relayed(running, relay) as url:
        for label, request in (
            ("1 KB", body(1)), ("32 KB", body(32)), ("1 KB, streamed", body(1, stream=True)),
        ):  # fmt: skip
            failed += (await closed_loop(urljoin(url, PATH), request, 1, 0.5)).failed
            relay.of_envoy.clear()
            relay.of_adapter.clear()
            served = await closed_loop(urljoin(url, PATH), request, 1, seconds)
            failed += served.failed
            print(f"\n{label}, for each of {len(served.latencies)} requests, one after the other")
            for name, each in (("from Envoy", relay.of_envoy), ("from the adapter", relay.of_adapter)):
                row = "  ".join(f"{kind} {each[kind] / len(served.latencies):.1f}" for kind in sorted(each))
                print(f"  {name:<18} {row}")
    return failed
