"""HTTPS to external providers. What comes back reads like an engine's answer, in the words of the client's API."""

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from pointsman_contracts.response import Usage
from pointsman_core.refusal import Refusal
from pointsman_edge.credentials.provider_credentials import CredentialMissing
from pointsman_edge.deciding.policy import EngineLimits
from pointsman_edge.sending.provider_book import ProviderBook
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_providers.errors import BrokenAnswer, attempt_outcome, explained, is_clients
from pointsman_providers.exchange import STREAMS, AnswerReader, ProviderCall, ProviderQuestion, StreamReader
from pointsman_providers.limits import ProviderLimits, limits
from pointsman_providers.resolve import Resolved

if TYPE_CHECKING:
    import aiohttp

LONGEST_ERROR: Final = 65536
LONGEST_DOCUMENT: Final = 64 * 2**20
_NO_LIMITS: Final = ProviderLimits()


class ProviderFailed(EndpointFailed):
    """A provider didn't answer. `refusal` is the client's error if no other endpoint answers either."""

    def __init__(
        self, outcome: str, detail: str, refusal: Refusal, status: int | None = None, told: ProviderLimits = _NO_LIMITS
    ) -> None:
        super().__init__(outcome, detail, status)
        self.refusal = refusal
        self.limits = told

    @property
    def final(self) -> bool:
        """Whether the request is at fault, so that it isn't sent elsewhere."""
        return self.status is not None and is_clients(self.status)


class ProviderAnswer:
    """An answer that has begun, as `Answering`."""

    def __init__(
        self, response: "aiohttp.ClientResponse", answer: AnswerReader, told: ProviderLimits, idle_s: float
    ) -> None:
        self._response = response
        self._answer = answer
        self._idle_s = idle_s
        self._silence_s: float | None = None
        self._stream: StreamReader | None = None
        self._waiting = b""
        self._complete = False
        self.status = response.status
        self.headers: Headers = [(b"content-type", b"application/json")]
        self.limits = told

    @property
    def usage(self) -> Usage | None:
        """The provider's report, as far as it was read."""
        return self._answer.usage

    @property
    def complete(self) -> bool:
        """As `Answering.complete`."""
        return self._complete and not self._waiting

    async def begin(self) -> None:
        """Wait for the first bytes that the client can have. Raises BrokenAnswer and aiohttp's errors."""
        if self._response.content_type in STREAMS:
            self.headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            self._stream = self._answer.stream()
            self._waiting = await self._next(self._stream)
            # A model may take longer until its first token than between two later ones.
            self._silence_s = self._idle_s
            return
        self._waiting = self._answer.whole(await _read(self._response, LONGEST_DOCUMENT))
        self._complete = True

    async def read(self) -> bytes:
        """As `Answering.read`."""
        import aiohttp

        if self._waiting or self._complete or self._stream is None:
            waiting, self._waiting = self._waiting, b""
            return waiting
        try:
            return await self._next(self._stream)
        except BrokenAnswer as broken:
            raise AnswerCutOff(str(broken)) from None
        except TimeoutError:
            raise AnswerCutOff("silent for too long") from None
        except aiohttp.ClientError as error:
            raise AnswerCutOff(type(error).__name__) from None

    def close(self) -> None:
        """Done: the connection serves again when the answer is complete; otherwise it is cut, which makes the provider
        stop."""
        if self._complete:
            self._response.release()
        else:
            self._response.close()

    async def _next(self, stream: StreamReader) -> bytes:
        while not self._complete:
            async with asyncio.timeout(self._silence_s):
                data = await self._response.content.readany()
            if data:
                events = stream.feed(data)
            else:
                self._complete = True
                events = stream.end()
            if events:
                return events
        return b""


class _Place(NamedTuple):
    url: str
    connections: int
    connect_s: float


class ProviderClient:
    """Connections to every provider."""

    def __init__(self, book: ProviderBook) -> None:
        self._book = book
        self._sessions: dict[_Place, aiohttp.ClientSession] = {}

    async def send(self, provider: Resolved, question: ProviderQuestion, within: EngineLimits) -> ProviderAnswer:
        """Ask a provider and wait until its answer begins. Raises ProviderFailed.

        The caller reads the answer and then closes it, whatever happened.
        """
        try:
            call = provider.format.call(question)
        except Refusal as refusal:
            raise ProviderFailed("unsupported", refusal.message, refusal) from None
        return await self._exchange(provider, call, within)

    async def close(self) -> None:
        """Close every connection."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def _exchange(self, provider: Resolved, call: ProviderCall, within: EngineLimits) -> ProviderAnswer:
        import aiohttp

        late = explained(provider.name, 504, b"")
        broken = explained(provider.name, 502, b"")
        response: aiohttp.ClientResponse | None = None
        begun = False
        try:
            async with asyncio.timeout(within.first_byte_s):
                response = await self._post(provider, call)
                told = limits(response.status, response.headers, time.time())
                if not 200 <= response.status < 300:
                    raise await _refused(provider, response, told)
                answer = ProviderAnswer(response, call.answer, told, within.idle_s)
                await answer.begin()
                begun = True
                return answer
        except CredentialMissing as missing:
            raise ProviderFailed("refused", str(missing), explained(provider.name, 401, b"")) from None
        except BrokenAnswer as error:
            raise ProviderFailed("failed", str(error), broken, _status(response)) from None
        except aiohttp.ServerTimeoutError:
            raise ProviderFailed("refused", "no connection within connect_timeout", late) from None
        except TimeoutError:
            raise ProviderFailed("timeout", "no answer in time", late) from None
        except aiohttp.ClientConnectorError as error:
            detail = error.os_error.strerror or type(error.os_error).__name__
            raise ProviderFailed("refused", detail, broken) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise ProviderFailed("failed", type(error).__name__, broken, _status(response)) from None
        finally:
            if response is not None and not begun:
                response.close()  # the caller is gone, or the answer is of no use

    async def _post(self, provider: Resolved, call: ProviderCall) -> "aiohttp.ClientResponse":
        import yarl

        url, headers = await self._book.prepared(provider, call)
        session = self._session(provider)
        return await session.post(yarl.URL(url, encoded=True), data=call.body, headers=headers, allow_redirects=False)

    def _session(self, provider: Resolved) -> "aiohttp.ClientSession":
        import aiohttp

        settings = provider.settings
        place = _Place(provider.url, settings.connections, settings.connect_timeout)
        session = self._sessions.get(place)
        if session is None:
            session = self._sessions[place] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=place.connections),
                timeout=aiohttp.ClientTimeout(total=None, connect=place.connect_s),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return session


async def _refused(provider: Resolved, response: "aiohttp.ClientResponse", told: ProviderLimits) -> ProviderFailed:
    body = await _read(response, LONGEST_ERROR)
    status = response.status
    refusal = explained(provider.name, status, body, told.retry_after_s)
    # The provider's own words may quote the request; they are for the client alone.
    return ProviderFailed(attempt_outcome(status), f"answered {status}", refusal, status, told)


async def _read(response: "aiohttp.ClientResponse", limit: int) -> bytes:
    pieces: list[bytes] = []
    while limit > 0 and (data := await response.content.read(limit)):
        pieces.append(data)
        limit -= len(data)
    return b"".join(pieces)


def _status(response: "aiohttp.ClientResponse | None") -> int | None:
    return None if response is None else response.status
