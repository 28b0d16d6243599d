"""HTTPS to external providers. Answers look like an engine's, in the client's API."""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, NamedTuple

from pointsman_contracts.response import Usage
from pointsman_core.refusal import Refusal
from pointsman_edge.credentials.provider_credentials import CredentialMissing
from pointsman_edge.deciding.policy import EngineLimits
from pointsman_edge.sending.own_limits import exhausted
from pointsman_edge.sending.provider_book import ProviderBook
from pointsman_frontend.adapters.engine_client import STALE_WITHIN_S
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_providers.errors import (
    OPERATORS,
    BrokenAnswer,
    answered_error,
    attempt_outcome,
    cut_off,
    explained,
    explained_answer,
    explained_error,
    is_clients,
    without_connection,
    without_credential,
)
from pointsman_providers.exchange import (
    FIRST_BYTES,
    AnswerReader,
    ProviderCall,
    StreamReader,
    first_bytes,
    is_stream,
)
from pointsman_providers.limits import ProviderLimits, limits
from pointsman_providers.reported_error import ProviderError
from pointsman_providers.resolve import Resolved

if TYPE_CHECKING:
    import aiohttp

LONGEST_ERROR: Final = 65536
LONGEST_DOCUMENT: Final = 64 * 2**20
LINGER_S: Final = 1.0
"""How long the end of the connection's answer may take after the mark that ends a stream."""
LAST_REPORT_S: Final = 5.0
"""How long the mark at the end, or a report of usage, may take after the last part of an answer."""
_LONGEST_HEADER: Final = 65536
_NO_LIMITS: Final = ProviderLimits()


class ProviderFailed(EndpointFailed):
    """A provider didn't answer. `refusal` is the client's error if no other endpoint answers either."""

    def __init__(
        self,
        outcome: str,
        detail: str,
        refusal: Refusal,
        status: int | None = None,
        told: ProviderLimits = _NO_LIMITS,
        *,
        error: bytes = b"",
    ) -> None:
        """`error`: the provider's document, which may quote the request."""
        super().__init__(outcome, detail, status)
        self.error = error
        self.refusal = refusal
        self.limits = told

    @property
    def is_final(self) -> bool:
        """Whether the request is at fault, so that it isn't sent elsewhere."""
        return self.status is not None and is_clients(self.status)


class ProviderAnswer:
    """An answer that has begun, as `Answering`."""

    def __init__(
        self,
        provider: Resolved,
        book: ProviderBook,
        response: "aiohttp.ClientResponse",
        answer: AnswerReader,
        told: ProviderLimits,
        idle_s: float,
    ) -> None:
        self._provider = provider
        self._book = book
        self._response = response
        self._answer = answer
        self._idle_s = idle_s
        self._silence_s: float | None = None
        self._stream: StreamReader | None = None
        self._waiting = b""
        self._complete = False
        self._broken = False
        self.cut_off = False
        """The provider broke off, or sent something else, within the answer."""
        self.status = response.status
        self.headers: Headers = [(b"content-type", b"application/json")]
        self.limits = told

    @property
    def usage(self) -> Usage | None:
        """The provider's report, as far as it was read."""
        return self._answer.usage

    @property
    def complete(self) -> bool:
        """Whether the answer ends with the bytes that were read last."""
        return self._complete and not self._waiting

    async def begin(self, thinking: Callable[[], None]) -> None:
        """Wait for the first event that says something, or for the whole document. `thinking` is called when something
        comes before: the provider is at work. Raises BrokenAnswer and aiohttp's errors."""
        first = b""
        while len(first_bytes(first)) < FIRST_BYTES and (data := await self._response.content.readany()):
            first += data
        if not is_stream(self._response.content_type, first):
            body = first + await _read(self._response, LONGEST_DOCUMENT - len(first))
            self._waiting = self._answer.translate_whole(body)
            self._complete = True
            return
        self.headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        stream = self._stream = self._answer.make_stream_reader()
        held = [stream.translate_bytes(first)]
        if stream.ended:
            held = [self._book.conceal_in_end(self._provider, held[0])]
        while not stream.has_begun and not self._complete:
            thinking()
            held.append(await self._next(stream))
        self._waiting = b"".join(held)
        # A model may take longer until its first token than between two later ones.
        self._silence_s = self._idle_s

    async def read(self) -> bytes:
        """The next bytes of the body as they arrived, b"" at its end."""
        import aiohttp

        if self._waiting or self._complete or self._stream is None:
            waiting, self._waiting = self._waiting, b""
            return waiting
        try:
            return await self._next(self._stream)
        except BrokenAnswer as broken:
            raise self._cut_off(str(broken), broken.error) from None
        except TimeoutError:
            raise self._cut_off("silent for too long") from None
        except aiohttp.ClientError as error:
            raise self._cut_off(_words(error)) from None

    def close(self) -> None:
        """Done: the connection serves again when the answer is complete; otherwise it is cut, which makes the provider
        stop."""
        if self._complete and not self._broken:
            self._response.release()
        else:
            self._response.close()

    def _cut_off(self, why: str, error: ProviderError | None = None) -> AnswerCutOff:
        self.cut_off = True
        refusal = cut_off(self._provider.name, error)
        self._book.conceal_secret(self._provider, refusal)
        return AnswerCutOff(self._book.conceal_in_words(self._provider, why), refusal)

    async def _next(self, stream: StreamReader) -> bytes:
        import aiohttp

        if stream.broken is not None:
            raise stream.broken
        while not self._complete:
            try:
                async with asyncio.timeout(self._patience_s(stream)):
                    data = await self._response.content.readany()
            except (TimeoutError, aiohttp.ClientError):
                # Services close, or fall silent, behind the end of an answer that lacks nothing.
                if not stream.finished:
                    raise
                self._broken = True
                data = b""
            if data:
                events = stream.translate_bytes(data)
            else:
                self._complete = True
                events = stream.translate_end()
            if events:
                return self._book.conceal_in_end(self._provider, events) if stream.ended else events
        return b""

    def _patience_s(self, stream: StreamReader) -> float | None:
        if stream.ended:
            return LINGER_S
        return LAST_REPORT_S if stream.finished else self._silence_s


class _Connection:
    """The connection of a request."""

    reused = False
    queued = False
    """All connections to the provider are in use."""


class _NoConnection(Exception):
    """No connection became free in time."""


class _Place(NamedTuple):
    url: str
    connections: int
    connect_s: float


class ProviderClient:
    """Connections to every provider."""

    def __init__(self, book: ProviderBook) -> None:
        self._book = book
        self._sessions: dict[_Place, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        """Close every connection."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def send_call(
        self, provider: Resolved, call: ProviderCall, within: EngineLimits, thinking: Callable[[], None]
    ) -> ProviderAnswer:
        """Ask a provider and wait until its answer begins; `thinking` as in `ProviderAnswer.begin`. Raises
        ProviderFailed.

        The caller reads the answer and then closes it, whatever happened.
        """
        import aiohttp

        late = explained(provider.name, 504)
        broken = explained(provider.name, 502)
        response: aiohttp.ClientResponse | None = None
        begun = False
        try:
            async with asyncio.timeout(within.first_byte_s):
                response = await self._post(provider, call)
                if not 200 <= response.status < 300:
                    raise await _refused(provider, response)
                told = limits(response.status, response.headers, time.time(), provider.settings.max_pause)
                answer = ProviderAnswer(
                    provider=provider,
                    book=self._book,
                    response=response,
                    answer=call.answer,
                    told=told,
                    idle_s=within.idle_s,
                )
                await answer.begin(thinking)
                begun = True
                return answer
        except CredentialMissing as missing:
            raise ProviderFailed("refused", str(missing), without_credential(provider.name)) from None
        except BrokenAnswer as error:
            raise _broken(provider, response, error) from None
        except _NoConnection:
            detail = "all `connections` are in use"
            raise ProviderFailed("limited", detail, without_connection(provider.name)) from None
        except aiohttp.ServerTimeoutError:
            raise ProviderFailed("refused", "no connection within connect_timeout", late) from None
        except TimeoutError:
            raise ProviderFailed("timeout", "no answer in time", late) from None
        except aiohttp.ClientConnectorError as error:
            own = exhausted(error.os_error)
            if own is not None:
                raise own from error
            detail = error.os_error.strerror or type(error.os_error).__name__
            raise ProviderFailed("refused", detail, broken) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise ProviderFailed("failed", _words(error), broken) from None
        finally:
            if response is not None and not begun:
                response.close()  # the caller is gone, or the answer is of no use

    async def _post(self, provider: Resolved, call: ProviderCall) -> "aiohttp.ClientResponse":
        import aiohttp
        import yarl

        url, headers = await self._book.prepare_call(provider, call)
        session = self._session(provider)
        target = yarl.URL(url, encoded=True)
        while True:
            connection = _Connection()
            began = time.monotonic()
            try:
                return await session.post(
                    target, data=call.body, headers=headers, allow_redirects=False, trace_request_ctx=connection
                )
            except aiohttp.ServerTimeoutError:
                if connection.queued:
                    raise _NoConnection from None
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # A kept connection that the provider had closed says nothing about the provider.
                refused = isinstance(error, aiohttp.ClientConnectorError)
                if refused or not connection.reused or time.monotonic() - began > STALE_WITHIN_S:
                    raise

    def _session(self, provider: Resolved) -> "aiohttp.ClientSession":
        import aiohttp

        from pointsman_runtime.reaching.http_names import http_connector

        settings = provider.settings
        place = _Place(provider.url, settings.connections, settings.connect_timeout)
        session = self._sessions.get(place)
        if session is None:
            session = self._sessions[place] = aiohttp.ClientSession(
                connector=http_connector(limit=place.connections),
                timeout=aiohttp.ClientTimeout(total=None, connect=place.connect_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[_tracing()],
                max_line_size=_LONGEST_HEADER,
                max_field_size=_LONGEST_HEADER,
            )
        return session


def _words(error: Exception) -> str:
    """The reason for an operator: aiohttp's own texts may quote the answer."""
    import aiohttp

    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed the connection"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "broke off within its answer, or sent what isn't in the encoding that it named"
    if isinstance(error, aiohttp.ClientResponseError):
        return "sent invalid HTTP"
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or type(error).__name__


def _tracing() -> "aiohttp.TraceConfig":
    """Tells a request whether it uses a connection that was kept, and whether it waits for one."""
    import aiohttp

    async def reuse(_session: object, context: SimpleNamespace, _told: object) -> None:
        context.trace_request_ctx.reused = True

    async def queue(_session: object, context: SimpleNamespace, _told: object) -> None:
        context.trace_request_ctx.queued = True

    async def leave_queue(_session: object, context: SimpleNamespace, _told: object) -> None:
        context.trace_request_ctx.queued = False

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_queued_start.append(queue)
    tracing.on_connection_queued_end.append(leave_queue)
    tracing.on_connection_reuseconn.append(reuse)
    return tracing


def _broken(provider: Resolved, response: "aiohttp.ClientResponse | None", broken: BrokenAnswer) -> ProviderFailed:
    """The failure of a provider whose answer has a good status, but isn't an answer."""
    error = broken.error
    if error is None or response is None:
        return ProviderFailed("failed", str(broken), explained(provider.name, 502))
    told = limits(error.status, response.headers, time.time(), provider.settings.max_pause, error)
    refusal = explained_error(provider.name, error, told.retry_after_s)
    return ProviderFailed(attempt_outcome(error.status), str(broken), refusal, error.status, told)


async def _refused(provider: Resolved, response: "aiohttp.ClientResponse") -> ProviderFailed:
    body = await _read(response, LONGEST_ERROR)
    error = answered_error(response.status, response.headers, body)
    told = limits(error.status, response.headers, time.time(), provider.settings.max_pause, error)
    refusal = explained_answer(provider.name, error, told.retry_after_s)
    # The provider's own words may quote the request; they are for the client alone.
    detail = f"answered {response.status}"
    if refusal.code in OPERATORS:
        detail += f": {refusal.code}"
    return ProviderFailed(attempt_outcome(error.status), detail, refusal, error.status, told, error=body)


async def _read(response: "aiohttp.ClientResponse", limit: int) -> bytes:
    pieces: list[bytes] = []
    while limit > 0 and (data := await response.content.read(limit)):
        pieces.append(data)
        limit -= len(data)
    return b"".join(pieces)
