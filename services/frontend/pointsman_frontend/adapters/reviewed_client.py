"""A client before whom the stages on the way back stand: nothing reaches it that they haven't let pass."""

from collections.abc import AsyncIterator, Awaitable, Callable

from pointsman_apis import named
from pointsman_apis.errors import SERVER_ERROR
from pointsman_core.refusal import Refusal
from pointsman_edge.reviewing.way_back import WayBack, Withheld
from pointsman_edge.telling.exchange import Exchange
from pointsman_frontend.adapters.client import Client, Headers


class ReviewedClient(Client):
    """Stands for `client` where an answer is written. Every method raises Withheld once a stage says so; a stream that
    had begun has its end then."""

    __slots__ = ("_client", "_exchange", "_refuse", "_start", "_way_back")

    def __init__(
        self, client: Client, way_back: WayBack, exchange: Exchange, refuse: Callable[[Refusal], Awaitable[None]]
    ) -> None:
        """`refuse` answers with an error of the gateway's own."""
        self._client = client
        self._way_back = way_back
        self._exchange = exchange
        self._refuse = refuse
        self._start: tuple[int, Headers] = (0, [])
        self._mirror()

    async def start(self, status: int, headers: Headers) -> None:
        """Status and headers leave with the first bytes that may."""
        self._start = (status, headers)
        self._way_back.begin(status, headers)
        if not self._way_back.blocks:
            await self._client.start(status, headers)
            self._mirror()

    async def write(self, data: bytes) -> None:
        """A piece of the body."""
        if not self._way_back.blocks:
            await self._out(data)
        elif self._exchange.stream:
            await self._let_out(self._way_back.push(data))
        else:
            await self._out(await self._way_back.gather(data))

    async def end(self, data: bytes = b"") -> None:
        """The last piece."""
        way_back = self._way_back
        if way_back.blocks and not self._exchange.stream and not self._client.started:
            status, headers = self._start
            named = [header for header in headers if header[0] != b"content-length"]
            await self.answer(status, named, way_back.gathered() + data)
            return
        if way_back.blocks and self._exchange.stream:
            await self._let_out(way_back.finish(data))
            data = b""
        await self._out(data, last=True)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response."""
        headers, body = await self._way_back.whole(status, headers, body)
        self._way_back.left(body)
        await self._client.answer(status, headers, body)
        self._mirror()

    async def fail(self, event: bytes) -> None:
        """The last word of a stream that can't go on; what the stages haven't seen stays here."""
        await self._client.fail(event)
        self._mirror()

    async def refuse(self, refusal: Refusal, headers: Headers | None = None) -> None:
        """An error of the gateway's own, which has its own way out."""
        del headers
        await self._refuse(refusal)
        self._mirror()

    async def _let_out(self, passed: AsyncIterator[bytes]) -> None:
        try:
            async for data in passed:
                await self._out(data)
        except Withheld as withheld:
            if self._client.started:
                end = self._way_back.filtered()
                if not withheld.blocked:
                    end = named(self._exchange.api).error_event(withheld.message, withheld.code or SERVER_ERROR)
                await self._client.fail(end)
                self._mirror()
            raise

    async def _out(self, data: bytes, *, last: bool = False) -> None:
        if not data and not last:
            return
        if not self._client.started:
            await self._client.start(self._start[0], self._way_back.headers)
        self._way_back.headers_left = True
        self._way_back.left(data)
        await (self._client.end(data) if last else self._client.write(data))
        self._mirror()

    def _mirror(self) -> None:
        client = self._client
        self.status, self.started, self.ended = client.status, client.started, client.ended
        self.bytes_out = client.bytes_out
