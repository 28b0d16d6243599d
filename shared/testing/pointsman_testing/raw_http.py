"""HTTP by hand, for requests that no client library would send."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

LIMIT_S: Final = 60.0
"""No answer takes longer in a test."""


@dataclass(frozen=True)
class RawResponse:
    """A response, taken apart."""

    status: int
    headers: list[tuple[str, str]]
    """Lower-case names, in order."""
    body: bytes
    """Without chunk framing."""
    complete: bool
    """Whether the response ended as its head announced."""

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        return next((value for key, value in self.headers if key == name), None)


class RawConnection:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> RawResponse:
        """Read one response, within `LIMIT_S`."""
        async with asyncio.timeout(LIMIT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = [(n.lower(), v.strip()) for n, _, v in (line.partition(":") for line in head[1:] if line)]
            status = int(head[0].split(" ")[1])
            names = dict(headers)
            pieces: list[bytes] = []
            try:
                if names.get("transfer-encoding") == "chunked":
                    while size := int(await self.reader.readuntil(b"\r\n"), 16):
                        pieces.append((await self.reader.readexactly(size + 2))[:-2])
                    await self.reader.readexactly(2)
                elif "content-length" in names:
                    pieces.append(await self.reader.readexactly(int(names["content-length"])))
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                if isinstance(error, asyncio.IncompleteReadError):
                    pieces.append(error.partial)
                return RawResponse(status, headers, b"".join(pieces), complete=False)
            return RawResponse(status, headers, b"".join(pieces), complete=True)

    async def read_until(self, text: bytes) -> bytes:
        """Read up to and including `text`, within `LIMIT_S`."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readuntil(text)

    async def closed(self) -> bytes:
        """Wait until the server closes; returns the bytes that it still sent."""
        async with asyncio.timeout(LIMIT_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        """Hang up at once."""
        self.writer.transport.abort()


@asynccontextmanager
async def raw_connection(url: str) -> AsyncGenerator[RawConnection]:
    """Connect to `http://host:port`, and hang up in the end."""
    host, _, port = url.partition("://")[2].partition(":")
    connection = RawConnection(*await asyncio.open_connection(host, int(port), limit=2**24))
    try:
        yield connection
    finally:
        connection.close()


async def raw_request(url: str, data: bytes) -> RawResponse:
    """Connect, send, read one response, hang up."""
    async with raw_connection(url) as connection:
        await connection.send(data)
        return await connection.response()


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A POST of JSON; `headers` are further lines."""
    lines = [
        f"POST {path} HTTP/1.1", "host: edge", "content-type: application/json", f"content-length: {len(body)}",
        *headers,
    ]  # fmt: skip
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
