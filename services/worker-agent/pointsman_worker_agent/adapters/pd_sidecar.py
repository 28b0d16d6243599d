"""A proxy before the engine that answers, in the place of llm-d's routing sidecar: a request that names a prefiller has
its prompt computed there first, or at the same time. Everything else passes as it is."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from typing import Final

import aiohttp
import orjson
from aiohttp import web
from msgspec.structs import replace

from pointsman_apis import READ
from pointsman_apis.beginning import says_something
from pointsman_apis.streams import EventSplitter, lenient_document
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.message import write
from pointsman_contracts.response import LegReport
from pointsman_core.engine_url import unix_address
from pointsman_core.header_names import HOP_BY_HOP
from pointsman_core.json_members import edit_fields
from pointsman_engines.transfers import (
    PREFILL,
    Edits,
    LegOutcome,
    NothingCarried,
    Pauses,
    SharedPrompt,
    share,
)
from pointsman_runtime.reaching.http_names import http_connector
from pointsman_runtime.telling.logs import Log

PREFILLER: Final = "x-prefiller-host-port"
REPORT: Final = "x-pointsman-prefill-leg"
"""A header of an answer: the `LegReport` as JSON, without the worker's name, for the epp-adapter. It removes the
header."""
PREFILLER_RANK: Final = "x-prefiller-rank"
"""`1/8`: the rank among those of the prefiller."""
_RANK: Final = "x-data-parallel-rank"
_ORDERS: Final = frozenset({PREFILLER, PREFILLER_RANK, "x-encoder-hosts-ports", "x-kv-cache-source-host-port"})
_APIS: Final = {api.path: api.name for api in READ}
_PLACE: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_RANK_OF: Final = re.compile(r"([0-9]{1,4})/([1-9][0-9]{0,3})")
_RETRIED: Final = frozenset({400, 422, 500})
"""Answers to a request with a transfer that may be about the transfer."""
_MOST_HELD: Final = 65536
"""Bytes of a stream that may come before its first word."""
GRACE_S: Final = 1.0
KEPT_ALIVE_S: Final = 4.0

_log = Log("pd_sidecar")


class LegFailed(Exception):
    """The first leg has no answer: `outcome` and `status` as in `LegReport`."""

    def __init__(self, outcome: str, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.status = status


class TransferLost(Exception):
    """The engine that answers couldn't use the first leg."""


class PdSidecar:
    """Serves `app`. The session is its own."""

    def __init__(
        self,
        engine_url: str,
        kind: Callable[[], str],
        *,
        allowed: Collection[str] = (),
        bootstrap_port: int | None = None,
        prefill_timeout_s: float = 60.0,
        connect_timeout_s: float = 5.0,
    ) -> None:
        """`engine_url`: of the engine that answers; `kind`: of both, as `WorkerRegistration.engine`; `allowed`: hosts
        of prefillers, empty for any; `bootstrap_port`: of SGLang's prefillers, None for its default."""
        self._kind: Final = kind
        self._allowed: Final = frozenset(allowed)
        self._bootstrap_port: Final = bootstrap_port
        self._prefill_timeout_s: Final = prefill_timeout_s
        self._pauses: Final = Pauses()
        self.outcomes: Final = Counter[str]()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s)
        self._session: Final = aiohttp.ClientSession(
            auto_decompress=False,
            connector=http_connector(limit=0, kept_alive_s=KEPT_ALIVE_S),
            timeout=timeout,
        )
        unix = unix_address(engine_url.rstrip("/"))
        self._engine_url: Final = engine_url.rstrip("/") if unix is None else unix.http_url
        self._to_engine: Final = (
            self._session
            if unix is None
            else aiohttp.ClientSession(
                auto_decompress=False,
                connector=aiohttp.UnixConnector(unix.socket, limit=0, keepalive_timeout=KEPT_ALIVE_S),
                timeout=timeout,
            )
        )
        self.app: Final = web.Application(client_max_size=0)
        self.app.router.add_route("*", "/{path:.*}", self._serve)

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        if self._to_engine is not self._session:
            await self._to_engine.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        prefiller = request.headers.get(PREFILLER, "").partition(",")[0].strip()
        api = _APIS.get(request.path)
        if not prefiller or api is None or request.method != "POST":
            return await self._pass(request, request.content if request.can_read_body else None)
        place = _PLACE.fullmatch(prefiller)
        if place is None or (self._allowed and place[1] not in self._allowed):
            return web.json_response(
                {"error": {"message": f"{PREFILLER} names no prefiller that may be asked.", "type": "forbidden"}},
                status=403,
            )
        return await self._split(request, await request.read(), prefiller, place[1].strip("[]"), api)

    async def _split(
        self, request: web.Request, body: bytes, prefiller: str, host: str, api: str
    ) -> web.StreamResponse:
        kind, began = self._kind(), time.monotonic()
        rank, ranks = _prefiller_rank(request)
        shared = share(kind, api, host, self._bootstrap_port, rank=rank, ranks=ranks)
        if shared is None:
            why = f"engines of kind {kind!r} can't share such requests"
            return await self._pass(request, body, self._report(LegOutcome.SKIPPED, began, reason=why))
        paused = self._pauses.is_paused(prefiller, "", time.monotonic())
        why = "the engines couldn't hand a prompt over lately" if paused else shared.read(body)
        if why:
            return await self._alone(request, body, shared, self._report(LegOutcome.SKIPPED, began, reason=why))
        if shared.together:
            return await self._together(request, body, prefiller, shared)
        try:
            carried = shared.edit_decode(await self._prefill(request, body, prefiller, shared))
        except LegFailed as failure:
            report = self._report(failure.outcome, began, status=failure.status, reason=str(failure))
            if failure.outcome != LegOutcome.USELESS:
                self._pause(prefiller, str(failure))
            return await self._pass(request, body, report)
        except NothingCarried as error:
            self._pause(prefiller, str(error))
            return await self._pass(
                request, body, self._report(LegOutcome.USELESS, began, status=200, reason=str(error))
            )
        report = self._report(LegOutcome.ANSWERED, began, status=200)
        try:
            return await self._pass(request, _edited(body, carried), report, carried=True)
        except TransferLost as lost:
            self._pause(prefiller, str(lost))
            self.outcomes[LegOutcome.LOST] += 1
            lost_report = replace(report, outcome=LegOutcome.LOST, reason=str(lost))
            return await self._pass(request, body, lost_report)

    async def _together(
        self, request: web.Request, body: bytes, prefiller: str, shared: SharedPrompt
    ) -> web.StreamResponse:
        began = time.monotonic()
        loop = asyncio.get_running_loop()
        first = loop.create_task(self._prefill(request, body, prefiller, shared))
        second = loop.create_task(self._ask(request, _edited(body, shared.edit_decode())))
        try:
            await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
            failure = first.exception() if first.done() else None
            outcome, status = LegOutcome.ANSWERED, 200
            if failure is not None:
                outcome, status = _ending(failure)
            if outcome == LegOutcome.USELESS:
                # A request that is wrong is refused by both; the client gets the answer of the engine here.
                await asyncio.wait((second,), timeout=GRACE_S)
            if failure is None or second.done():
                report = self._report(outcome, began, status=status)
                try:
                    return await self._relay(request, await second, b"", report)
                except aiohttp.ClientError as error:
                    return _unreachable(error)
        finally:
            for task in (first, second):
                task.cancel()
        if outcome != LegOutcome.USELESS:
            self._pause(prefiller, str(failure))
        return await self._alone(
            request, body, shared, self._report(outcome, began, status=status, reason=str(failure))
        )

    async def _alone(
        self, request: web.Request, body: bytes, shared: SharedPrompt, report: LegReport
    ) -> web.StreamResponse:
        """The answer of the engine, which computes the prompt; 503 where it can't."""
        if shared.alone:
            return await self._pass(request, body, report)
        text = "The engine behind this sidecar computes no prompts, and the one that does couldn't."
        return web.json_response(
            {"error": {"message": text, "type": "server_error"}}, status=503, headers={REPORT: write(report).decode()}
        )

    async def _prefill(self, request: web.Request, body: bytes, prefiller: str, shared: SharedPrompt) -> bytes:
        """The answer of the first leg. Raises LegFailed."""
        url = f"http://{prefiller}{request.rel_url}"
        try:
            async with (
                asyncio.timeout(self._prefill_timeout_s),
                self._session.post(
                    url,
                    data=_edited(body, shared.edit_prefill()),
                    headers=_passed_to_prefiller(request),
                    allow_redirects=False,
                ) as answer,
            ):
                read = await answer.read()
        except TimeoutError:
            raise LegFailed("timeout", f"no answer within {self._prefill_timeout_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            raise LegFailed("refused", error.strerror or "no connection") from None
        except aiohttp.ClientError as error:
            raise LegFailed("failed", type(error).__name__) from None
        if answer.status >= 300:
            own = answer.status in (400, 404, 413, 422)
            raise LegFailed(LegOutcome.USELESS if own else "failed", f"answered {answer.status}", answer.status)
        return read

    async def _ask(self, request: web.Request, body: bytes | aiohttp.StreamReader | None) -> aiohttp.ClientResponse:
        return await self._to_engine.request(
            request.method,
            f"{self._engine_url}{request.rel_url}",
            data=body,
            headers=_passed(request),
            allow_redirects=False,
        )

    async def _pass(
        self,
        request: web.Request,
        body: bytes | aiohttp.StreamReader | None,
        report: LegReport | None = None,
        *,
        carried: bool = False,
    ) -> web.StreamResponse:
        """The engine's answer. Raises TransferLost where it was `carried` a prompt and can't use it."""
        try:
            answer = await self._ask(request, body)
        except aiohttp.ClientError as error:
            return _unreachable(error)
        return await self._relay(request, answer, await self._begun(answer, carried=carried), report)

    async def _begun(self, answer: aiohttp.ClientResponse, *, carried: bool) -> bytes:
        """The bytes of an answer up to its first word, where it may yet turn out that the prompt was lost."""
        if not carried:
            return b""
        if answer.status in _RETRIED:
            answer.close()
            raise TransferLost(f"the endpoint that answers answered {answer.status}")
        if not answer.content_type.startswith("text/event-stream"):
            return b""
        splitter, held = EventSplitter(), b""
        async for data in _pieces(answer):
            held += data
            for event in splitter.split_bytes(data):
                document = lenient_document(event.data) if event.data else {}
                if document is not None and "error" in document:
                    answer.close()
                    raise TransferLost("the endpoint that answers began with an error")
                if event.data and (document is None or says_something(document)):
                    return held
            if len(held) > _MOST_HELD:
                break
        return held

    async def _relay(
        self, request: web.Request, answer: aiohttp.ClientResponse, begun: bytes, report: LegReport | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in HOP_BY_HOP:
                response.headers.add(name, value)
        if report is not None:
            response.headers[REPORT] = write(report).decode()
        try:
            await response.prepare(request)
            if begun:
                await response.write(begun)
            async for data in _pieces(answer):
                await response.write(data)
            await response.write_eof()
        except aiohttp.ClientError:
            # A cut answer must not look like a whole one.
            if request.transport is not None:
                request.transport.abort()
        finally:
            # A client that is gone makes the engine stop.
            answer.close()
        return response

    def _pause(self, prefiller: str, reason: str) -> None:
        if self._pauses.begin_pause(prefiller, "", time.monotonic()):
            _log.warning("prompt_not_handed_over", prefiller=prefiller, reason=reason)

    def _report(self, outcome: str, began: float, *, status: int | None = None, reason: str = "") -> LegReport:
        self.outcomes[outcome] += 1
        took_ms = round((time.monotonic() - began) * 1000.0, 3)
        return LegReport(leg=PREFILL, worker="", outcome=outcome, status=status, took_ms=took_ms, reason=reason)


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    while data := await answer.content.readany():
        yield data


def _ending(failure: BaseException) -> tuple[str, int | None]:
    """Outcome and status of a leg that failed."""
    return (failure.outcome, failure.status) if isinstance(failure, LegFailed) else ("failed", None)


def _unreachable(error: aiohttp.ClientError) -> web.Response:
    _log.warning("engine_unreachable", error=type(error).__name__)
    text = "The engine behind this sidecar could not be reached."
    return web.json_response({"error": {"message": text, "type": "server_error"}}, status=503)


def _edited(body: bytes, edits: Edits) -> bytes:
    changes: dict[str, bytes | None] = {each.field: _json(each) for each in edits}
    return edit_fields(body, changes)


def _json(edit: BodyEdit) -> bytes | None:
    return None if edit.remove else orjson.dumps(edit.value)


def _passed(request: web.Request) -> list[tuple[str, str]]:
    """The headers for an engine."""
    dropped = HOP_BY_HOP | _ORDERS | {"content-length", "host"}
    return [(name, value) for name, value in request.headers.items() if name.lower() not in dropped]


def _prefiller_rank(request: web.Request) -> tuple[int, int] | tuple[None, None]:
    found = _RANK_OF.fullmatch(request.headers.get(PREFILLER_RANK, "").strip())
    return (None, None) if found is None else (int(found[1]), int(found[2]))


def _passed_to_prefiller(request: web.Request) -> list[tuple[str, str]]:
    """The rank that the request names is one of the engine that answers; the prefiller has its own."""
    passed = [each for each in _passed(request) if each[0].lower() != _RANK]
    rank, _ = _prefiller_rank(request)
    return passed if rank is None else [*passed, (_RANK, str(rank))]
