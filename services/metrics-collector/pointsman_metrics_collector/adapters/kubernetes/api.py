"""The API server: this process's credentials, one page of a list, the bytes of a watch.

lightkube knows credentials: those of a service account, read again after their renewal, and those of a kubeconfig;
`kubeconfig` has the parts that lightkube skips. Lists and watches are requested here
(docs/adr/0008-the-cluster-is-listed-and-watched-here.md).
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol, cast

import httpx2
import yaml
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from pointsman_metrics_collector.adapters.kubernetes.credential_plugin import PluginAuth
from pointsman_metrics_collector.adapters.kubernetes.kubeconfig import Access, paths, read
from pointsman_metrics_collector.domain.kubernetes.answers import (
    ListPage,
    ListRefused,
    Unreachable,
    read_page,
    read_status_body,
)
from pointsman_metrics_collector.domain.kubernetes.collections import Collection, T

TIMEOUT_S: Final = 10.0
PAGE: Final = 500
"""Objects of one answer, as client-go asks for."""
WATCH_S: Final = 30
"""Seconds that the API server is asked to keep a watch open. A dead connection is noticed within this time; resuming
from the last version costs the server next to nothing."""
PATIENCE_S: Final = 8.0
"""Seconds that a watch may be silent beyond that."""
_ERROR_BYTES: Final = 16_384


class _Parameters(ConnectionParams):
    """With a connection for every watch, however many pools there are; httpx has 100 in all otherwise."""

    auth: httpx2.Auth | None = None
    """Replaces lightkube's credentials."""

    def httpx_params(self, config: SingleConfig) -> dict[str, object]:
        known = cast("dict[str, object]", super().httpx_params(config))  # pyright: ignore[reportUnknownMemberType] - untyped in lightkube
        auth = known["auth"] if self.auth is None else self.auth
        return {**known, "auth": auth, "limits": httpx2.Limits(max_keepalive_connections=4)}


class _Connection(Protocol):
    async def aclose(self) -> None: ...


class KubernetesApi:
    """One cluster. Every call raises Unreachable, Refused, or UnreadableAnswer."""

    def __init__(self, access: Access, *, watch_s: int = WATCH_S, patience_s: float = PATIENCE_S) -> None:
        config = access.config
        if config.user is None:
            raise Unreachable(f"the context {config.context_name!r} of the kubeconfig names no user")
        self.namespace: Final = config.namespace
        """The namespace of this process."""
        self.server: Final = config.cluster.server
        self._watch_s: Final = watch_s
        self._server_name: Final = access.server_name
        parameters = _Parameters(timeout=httpx2.Timeout(TIMEOUT_S), proxy=access.proxy)
        try:
            if access.plugin is not None:
                parameters.auth = PluginAuth(access.plugin, access.cluster)
            self._client = AsyncClient(config, parameters)
        except (OSError, ValueError, ImportError, ConfigError) as error:
            # ImportError: a SOCKS proxy takes a library that isn't installed.
            raise Unreachable(f"its credentials can't be used: {error}") from None
        self._watch_timeout = httpx2.Timeout(TIMEOUT_S, read=watch_s + patience_s)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def list_page(self, collection: Collection[T], rest: str = "", *, whole: bool = False) -> ListPage[T]:
        """A page of a list, from `rest` on; `whole` requests all pages at once. The list is the newest: no
        resourceVersion is sent, since one from a server's cache may be older than the known state."""
        parameters = {} if whole else {"limit": str(PAGE)}
        if rest:
            parameters["continue"] = rest
        return read_page(collection.kind, await self._listed(collection, parameters))

    async def may_list(self, collection: Collection[T]) -> None:
        """Request the smallest page, to learn whether the role allows lists. Raises what `page` raises."""
        await self._listed(collection, {"limit": "1"})

    async def _listed(self, collection: Collection[T], parameters: dict[str, str]) -> bytes:
        parameters |= collection.selection
        try:
            answer = await self._client.get(collection.path, params=parameters, extensions=self._extensions())
        except (httpx2.HTTPError, httpx2.InvalidURL, ConfigError, OSError) as error:
            raise Unreachable(_words(error)) from None
        if answer.status_code != 200:
            raise _refused(answer, answer.content)
        return answer.content

    @asynccontextmanager
    async def watch_collection(self, collection: Collection[T], version: str) -> AsyncGenerator[AsyncGenerator[bytes]]:
        """The bytes of a watch from a version on, as they come. Without a version it begins with every existing
        object."""
        parameters = collection.selection | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_s),
        }
        if version:
            parameters["resourceVersion"] = version
        try:
            async with self._client.stream(
                "GET",
                collection.path,
                params=parameters,
                timeout=self._watch_timeout,
                extensions=self._extensions(),
            ) as answer:
                if answer.status_code != 200:
                    raise _refused(answer, await _beginning(answer))
                yield _bytes(answer)
        except (httpx2.HTTPError, httpx2.InvalidURL, ConfigError, OSError) as error:
            raise Unreachable(_words(error)) from None

    def _extensions(self) -> dict[str, object]:
        extensions = _leaving_nothing_open()
        if self._server_name:
            extensions["sni_hostname"] = self._server_name
        return extensions


def connect(
    *, service_account: str = SERVICE_ACCOUNT, watch_s: int = WATCH_S, patience_s: float = PATIENCE_S
) -> KubernetesApi:
    """Connects with the service account's credentials in a cluster, else with `KUBECONFIG` or `~/.kube/config`. Raises
    Unreachable without either."""
    try:
        access = _of_service_account(service_account) or read(paths())
    except (ConfigError, OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise Unreachable(f"no credentials for a cluster were found: {_words(error)}") from None
    return KubernetesApi(access, watch_s=watch_s, patience_s=patience_s)


def _of_service_account(folder: str) -> Access | None:
    try:
        config = KubeConfig.from_service_account(service_account=folder).get()
    except ConfigError:
        return None
    return None if config is None else Access(config)


def _leaving_nothing_open() -> dict[str, object]:
    """Closes a request's connection when it is cancelled during the TLS handshake: httpcore2 does so only after errors
    (`AnyIOStream.start_tls`). Its trace extension provides the connection."""
    connected: list[_Connection] = []

    async def trace(event: str, info: Mapping[str, object]) -> None:
        if event == "connection.connect_tcp.complete":
            connected.append(cast("_Connection", info["return_value"]))
        elif event == "connection.start_tls.failed":
            await connected[-1].aclose()

    return {"trace": trace}


async def _bytes(answer: httpx2.Response) -> AsyncGenerator[bytes]:
    async for data in answer.aiter_bytes():
        yield data


async def _beginning(answer: httpx2.Response) -> bytes:
    body = b""
    async for data in answer.aiter_bytes():
        body += data
        if len(body) > _ERROR_BYTES:
            break
    return body


def _refused(answer: httpx2.Response, body: bytes) -> ListRefused:
    status = read_status_body(body)
    retry_after = answer.headers.get("retry-after", "")
    return ListRefused(
        answer.status_code,
        status.message or status.reason,
        float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else 0.0,
    )


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
