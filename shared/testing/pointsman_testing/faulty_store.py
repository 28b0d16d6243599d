"""A store with the part of S3's protocol that the batch service uses. Tests choose how it fails."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, Self
from xml.sax.saxutils import escape

from pointsman_testing.ports import free_port

if TYPE_CHECKING:
    from types import TracebackType

Fault = Literal["away", "hangs", "slow down", "denied", "truncated", "short", "page"]
FAULTS: Final[tuple[Fault, ...]] = ("away", "hangs", "slow down", "denied", "truncated", "short", "page")
_XML = "<?xml version='1.0'?><{0}>{1}</{0}>"


class FaultyStore:
    """One bucket on a port of its own. `fault` applies from the next request on; None: it works."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        """The content of each key, and the headers that it is sent with."""
        self.fault: Fault | None = None
        self.refused = 0
        """Requests that failed."""
        self.url: Final = f"http://127.0.0.1:{free_port()}"
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", int(self.url.rpartition(":")[2]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        if self._server is not None:
            self._server.close()
        for task, writer in self._tasks.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._take(reader, writer))
        self._tasks[task] = writer
        task.add_done_callback(self._tasks.pop)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(reader, writer):
                    await writer.drain()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether another one may come on the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        fault = self.fault
        if fault is None:
            self._work(writer, method, target, headers, body)
            return True
        self.refused += 1
        if fault == "hangs":
            await reader.read()
        elif fault in ("slow down", "denied"):
            status, code = (503, "SlowDown") if fault == "slow down" else (403, "AccessDenied")
            _write(writer, status, _XML.format("Error", f"<Code>{code}</Code>").encode())
            return True
        elif fault == "page":
            _write(writer, 200, b"<html>A proxy's page.")
            return True
        elif method == "GET" and (found := self.objects.get(_key(target))) is not None:
            content, metadata = found
            if fault == "short":
                _write(writer, 200, content[: len(content) // 2], metadata)
                return True
            if fault == "truncated":
                _write(writer, 200, content[: len(content) // 2], metadata, length=len(content))
        return False

    def _work(
        self, writer: asyncio.StreamWriter, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> None:
        key = _key(target)
        if method == "PUT":
            metadata = {"etag": '"x"'}
            metadata |= {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}
            self.objects[key] = body, metadata
            _write(writer, 200, b"", metadata)
        elif method == "DELETE":
            self.objects.pop(key, None)
            _write(writer, 204, b"")
        elif "list-type=2" in target:
            prefix = target.partition("prefix=")[2].partition("&")[0].replace("%2F", "/")
            keys = sorted(each for each in self.objects if each.startswith(prefix))
            found = "".join(f"<Contents><Key>{escape(each)}</Key></Contents>" for each in keys)
            _write(writer, 200, _XML.format("ListBucketResult", f"<IsTruncated>false</IsTruncated>{found}").encode())
        elif key in self.objects:
            _write(writer, 200, *self.objects[key])
        else:
            _write(writer, 404, _XML.format("Error", "<Code>NoSuchKey</Code>").encode())


def _key(target: str) -> str:
    """The part of a path behind the bucket."""
    return target.partition("?")[0].lstrip("/").partition("/")[2]


def _write(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    headers: dict[str, str] | None = None,
    *,
    length: int | None = None,
) -> None:
    lines = [f"HTTP/1.1 {status} x", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    if status != 204:
        lines.append(f"content-length: {len(body) if length is None else length}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
