"""HTTP to one engine: its metrics, models, health and version."""

import asyncio
import errno
from functools import lru_cache
from ssl import SSLContext
from typing import Final, TypedDict
from urllib.parse import urlencode

import aiohttp
from pydantic import BaseModel, ValidationError
from yarl import URL

from pointsman_core.config import EngineTls
from pointsman_core.engine_url import unix_address
from pointsman_runtime.reaching.engine_tls import engine_context
from pointsman_runtime.reaching.http_names import http_connector

METRICS_PATHS: Final = ("/metrics", "/prometheus/metrics")
"""The second is where trtllm-serve has them; its `/metrics` answers with JSON."""

HEALTH_PATHS: Final = ("/health", "/v2/health/ready")
"""The second is Triton's."""

LARGEST: Final = 16 * 1024 * 1024
"""Bytes of an answer; the largest exposition has a few hundred kilobytes."""

# An engine compresses its answer in the process that also handles requests; on the same host that's wasted.
_HEADERS: Final = {"Accept-Encoding": "identity", "Accept": "text/plain;version=0.0.4, */*;q=0.1"}
_NO_HEADERS: Final[dict[str, str]] = {}
_NO_TIMEOUT: Final = aiohttp.ClientTimeout()
_HOPS: Final = 3
"""A page, and two redirects before it."""
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_OWN_LIMITS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)


# The same few texts are parsed several times a second; the cache parses each once.
@lru_cache(maxsize=64)
def _query(names: tuple[bytes, ...]) -> str:
    return "?" + urlencode([("name[]", name.decode()) for name in names]) if names else ""


@lru_cache(maxsize=4096)
def _parsed(url: str) -> URL:
    return URL(url)


class _Version(BaseModel):
    version: str


class PageUnread(Exception):
    """A page of the engine couldn't be read; the text has the reason."""


class EngineUnreachable(PageUnread):
    """There is no way to the engine: no route, no such name, or no trust in its certificate."""


class EngineRefused(EngineUnreachable):
    """The connection is refused: the process is gone, or hasn't started."""


class EngineReset(PageUnread):
    """The connection was closed without an answer. That happens to a connection that was idle, too."""


class EngineHung(PageUnread):
    """The engine doesn't answer in time."""


class EngineFailed(PageUnread):
    """The engine answered with an error status."""

    def __init__(self, path: str, status: int, more: str = "") -> None:
        super().__init__(f"{path} answers {status}{more}")
        self.status = status


class PageGarbled(PageUnread):
    """The engine answers with something else than a page, or with one that is too large."""


class OwnLimitReached(PageUnread):
    """This process has no descriptor, port or memory left, which says nothing about the engine."""


def engine_session() -> aiohttp.ClientSession:
    """For any number of engines: hanging ones leave the others their connections. aiohttp's default is 100."""
    return aiohttp.ClientSession(connector=http_connector(limit=0))


def session_to(url: str, session: aiohttp.ClientSession) -> tuple[aiohttp.ClientSession, str]:
    """The session for an engine, and its base URL for requests on it: for a Unix socket one of its own, which the
    caller closes, else the given one."""
    unix = unix_address(url)
    if unix is None:
        return session, url
    return aiohttp.ClientSession(connector=aiohttp.UnixConnector(unix.socket, limit=0)), unix.http_url


class _Secured(TypedDict, total=False):
    ssl: SSLContext
    server_hostname: str


class EngineClient:
    """One engine. Every call raises a PageUnread when it doesn't get its answer within its timeout."""

    def __init__(
        self,
        url: str,
        *,
        metrics_url: str | None = None,
        api_key: str | None = None,
        session: aiohttp.ClientSession,
        tls: EngineTls | None = None,
    ) -> None:
        """`tls`: for https:// URLs; None: as the system does it."""
        self.url = url.rstrip("/")
        self._session, base = session_to(self.url, session)
        self._own_session = None if self._session is session else self._session
        self._base = base.rstrip("/")
        if metrics_url is not None and (unix := unix_address(metrics_url)) is not None:
            metrics_url = unix.http_url
        self._metrics_url = metrics_url
        self._some_url: str | None = None
        """URL for some of the metrics."""
        self._authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._tls = tls

    async def close(self) -> None:
        """Close what is this client's own: the connections of a Unix socket."""
        if self._own_session is not None:
            await self._own_session.close()

    async def metrics(self, names: tuple[bytes, ...] = (), *, timeout: float) -> bytes:  # noqa: ASYNC109 - bounds the call
        """The exposition. `names` asks for these families alone; servers without that feature answer with all families.

        `prometheus_client`, which most engines use, takes `name[]` and doesn't collect the others. vLLM has it at
        `/metrics/`, and at `/metrics` a page of its own that always holds everything.
        """
        if names and self._some_url is not None:
            return await self._get(self._some_url, "/metrics", timeout, query=_query(names))
        if self._metrics_url is not None:
            if names and not self._metrics_url.endswith("/"):
                try:
                    body = await self._get(f"{self._metrics_url}/", "/metrics/", timeout, query=_query(names))
                except EngineFailed:
                    self._some_url = self._metrics_url
                else:
                    self._some_url = f"{self._metrics_url}/"
                    return body
            return await self._get(self._metrics_url, "/metrics", timeout, query=_query(names))
        for path in METRICS_PATHS:
            try:
                body = await self._get(self._base + path, path, timeout, query=_query(names))
            except EngineFailed as error:
                if error.status != 404:
                    raise
                continue
            if body[:1] not in (b"[", b"{"):
                self._metrics_url = self._base + path
                return body
        raise PageGarbled(f"no Prometheus metrics at {' or '.join(METRICS_PATHS)}")

    async def models(self, *, timeout: float) -> bytes:  # noqa: ASYNC109 - bounds the call
        """The body of `/v1/models`."""
        return await self._get(f"{self._base}/v1/models", "/v1/models", timeout, headers=self._authorization)

    async def check_health(self, *, timeout: float) -> bool:  # noqa: ASYNC109 - bounds the call
        """True when the engine answers that it is healthy, False when it has no health path. Raises EngineFailed when
        it says that it isn't."""
        for path in HEALTH_PATHS:
            try:
                await self._get(f"{self._base}{path}", path, timeout)
            except EngineFailed as error:
                if error.status != 404:
                    raise
                continue
            return True
        return False

    async def check(self, path: str, *, timeout: float) -> None:  # noqa: ASYNC109 - bounds the call
        """Return when this path answers 200."""
        await self._get(f"{self._base}{path}", path, timeout)

    async def version(self, *, timeout: float) -> str:  # noqa: ASYNC109 - bounds the call
        """The version from `/version`; empty for an engine without that path."""
        try:
            body = await self._get(f"{self._base}/version", "/version", timeout)
            return _Version.model_validate_json(body).version
        except (EngineFailed, ValidationError):
            return ""

    def _secured(self, url: URL) -> _Secured:
        tls = self._tls
        if tls is None or url.scheme != "https":
            return {}
        try:
            context = engine_context(tls)
        except OSError as error:
            raise PageGarbled(f"`tls` of its pool can't be used: {error.strerror or error}") from None
        return {"ssl": context} if tls.server_name is None else {"ssl": context, "server_hostname": tls.server_name}

    async def wake_up(self, *, timeout: float) -> None:  # noqa: ASYNC109 - bounds the call
        """Wake all parts of an engine in vLLM's sleep mode. Its answer says that it was asked, not that it serves."""
        await self._get(f"{self._base}/wake_up", "/wake_up", timeout, headers=self._authorization, method="POST")

    async def _get(
        self,
        url: str,
        path: str,
        timeout: float,  # noqa: ASYNC109 - bounds the call
        *,
        query: str = "",
        headers: dict[str, str] = _NO_HEADERS,
        method: str = "GET",
    ) -> bytes:
        try:
            async with asyncio.timeout(timeout):
                asked = _HEADERS | headers if headers else _HEADERS
                return await self._follow(_parsed(url + query), path, asked, method)
        except TimeoutError:
            raise EngineHung(f"no answer from {path} within {timeout:g} s") from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise PageGarbled(f"no TLS connection: {error}; see `tls` of its pool") from None
        except aiohttp.ClientConnectorError as error:
            raise _no_connection(error.os_error) from None
        except (aiohttp.ServerDisconnectedError, ConnectionError):
            raise EngineReset(f"{path}: the connection was closed") from None
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, OSError) and error.errno in _OWN_LIMITS:
                raise _no_connection(error) from None
            raise PageGarbled(f"{path}: {type(error).__name__}") from None

    async def _follow(self, url: URL, path: str, headers: dict[str, str], method: str) -> bytes:
        """The page, also when it stands at another path of the same server. No other server is asked: an engine doesn't
        decide which addresses this process connects to."""
        for _ in range(_HOPS):
            async with self._session.request(
                method, url, headers=headers, timeout=_NO_TIMEOUT, allow_redirects=False, **self._secured(url)
            ) as response:
                if response.status in _REDIRECTS:
                    target = _target(response)
                    if target is None or target.origin() != url.origin():
                        where = "" if target is None else f" and leads to {target.origin()}"
                        raise EngineFailed(path, response.status, where)
                    url = target
                    continue
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > LARGEST:
                        raise PageGarbled(f"{path} answers more than {LARGEST} bytes")
                if response.status != 200:
                    raise EngineFailed(path, response.status)
                return bytes(body)
        raise PageGarbled(f"{path} leads back to itself")


def _target(response: aiohttp.ClientResponse) -> URL | None:
    location = response.headers.get("Location", "")
    try:
        return response.url.join(URL(location)) if location else None
    except ValueError:
        return None


def _no_connection(error: OSError) -> PageUnread:
    if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
        # ENOENT: the Unix socket isn't there, e.g. because its process has removed it.
        return EngineRefused("connection refused")
    words = error.strerror or str(error)
    if error.errno in _OWN_LIMITS:
        return OwnLimitReached(f"this process can't open a connection: {words}")
    if error.errno == errno.ECONNRESET:
        return EngineReset("the connection was reset")
    return EngineUnreachable(f"no connection: {words}")
