"""The lists and watches of a Kubernetes API server, on a real socket, as the published API describes them:
https://kubernetes.io/docs/reference/using-api/api-concepts/

Versions are opaque to clients and count changes here. Lists come in pages whose continuation expires. A watch sends the
changes after its version, bookmarks on request, and ends after `timeoutSeconds`. A version from before `compact` is 410
Gone. Tests can cause faults: cut connections, half-written lines, silence, errors, missing kinds.
"""

import asyncio
import copy
import json
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml
from aiohttp import web

from pointsman_runtime.bus.cancellation import end_all
from pointsman_testing.kube_objects import (
    INFERENCE_POOLS,
    PODS,
    TOKEN,
    Object,
    failure,
    inference_pool,
    kubeconfig,
    pod,
)


class Event(NamedTuple):
    """A change, with the object before and after it."""

    version: int
    path: str
    before: Object | None
    after: Object | None


class KubeRequest(NamedTuple):
    """One request."""

    path: str
    query: dict[str, str]

    @property
    def watches(self) -> bool:
        """Whether the request was for a watch."""
        return self.query.get("watch") == "true"


@dataclass(eq=False)
class _Watch:
    query: Mapping[str, str]
    path: str
    queue: asyncio.Queue[bytes | None]
    request: web.Request
    dead: bool = False


@dataclass(eq=False)
class KubeApi:
    """Change its fields and objects while it runs."""

    absent: set[str] = field(default_factory=set[str])
    """Kinds (plural) that the cluster doesn't know."""
    gone_in_stream: bool = False
    """Whether an event reports a version that is too old, as when the server has begun to answer; otherwise a status
    does."""
    failing: list[tuple[int, dict[str, str]]] = field(default_factory=list[tuple[int, dict[str, str]]])
    """Status and headers of the next answers."""
    denied: set[str] = field(default_factory=set[str])
    """Kinds (plural) that this client's role doesn't have; with `list ` or `watch ` in front only that verb."""
    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    ends_at_once: bool = False
    """Whether each watch ends before its first event."""
    tls: ssl.SSLContext | None = None
    page: int | None = None
    """Objects of a page when a list is asked for in pages; None for as many as asked for."""

    def __post_init__(self) -> None:
        self.asked: list[KubeRequest] = []
        self.url = ""
        self._objects: dict[str, dict[str, Object]] = {}
        self._events: list[Event] = []
        self._version = 100
        self._oldest = 100
        self._watches: set[_Watch] = set()
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._lists: dict[str, tuple[int, list[Object]]] = {}

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        listener = self._listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        peers = list(self._handshakes.values())
        await end_all(self._handshakes)
        for peer in peers:
            peer.close()
        if self._runner is not None and self._runner.server is not None:
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()  # an orderly end of TLS would wait for the client's part
            await self._runner.cleanup()

    def _accept(self, listener: socket.socket) -> None:
        """Take a connection. asyncio's own server leaves those behind that are in their handshake when it ends."""
        with suppress(BlockingIOError):
            peer, _ = listener.accept()
            task = asyncio.get_running_loop().create_task(self._connect(peer))
            self._handshakes[task] = peer
            task.add_done_callback(self._handshakes.pop)

    async def _connect(self, peer: socket.socket) -> None:
        if self._runner is not None and self._runner.server is not None:
            with suppress(OSError):  # the client left
                await asyncio.get_running_loop().connect_accepted_socket(self._runner.server, peer, ssl=self.tls)

    def kubeconfig(self, folder: Path, *, token: str = TOKEN, namespace: str = "default") -> Path:
        """Write a kubeconfig for this server."""
        file = folder / "kubeconfig.yaml"
        document = kubeconfig(self.url, token, namespace)
        file.write_text(yaml.safe_dump(document))
        return file

    def put(self, kind: tuple[str, str], name: str, document: Object, namespace: str = "default") -> None:
        """Create an object, or put another in its place. `document` may have `metadata` of its own."""
        path = _path(kind, namespace)
        objects = self._objects.setdefault(path, {})
        before = objects.get(name)
        self._version += 1
        metadata = {"uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"} | document.get("metadata", {})
        metadata |= {"name": name, "namespace": namespace, "resourceVersion": str(self._version)}
        objects[name] = copy.deepcopy({**document, "metadata": metadata})
        self._happened(Event(self._version, path, before, objects[name]))

    def delete(self, kind: tuple[str, str], name: str, namespace: str = "default") -> None:
        """Delete an object."""
        path = _path(kind, namespace)
        before = self._objects[path].pop(name)
        self._version += 1
        self._happened(Event(self._version, path, before, None))

    def pod(self, name: str, ip: str = "10.0.0.1", **changes: Any) -> None:
        """See `kube_objects.pod`."""
        self.put(PODS, name, pod(name, ip, **changes))

    def inference_pool(self, name: str, *ports: int, labels: Mapping[str, str] | None = None) -> None:
        """See `kube_objects.inference_pool`."""
        self.put(INFERENCE_POOLS, name, inference_pool(*ports, labels=labels))

    @property
    def watching(self) -> int:
        """Watches that are open."""
        return len(self._watches)

    def compact(self) -> None:
        """Forget what happened so far: watches from before are 410 Gone, and so are lists that were begun."""
        self._oldest = self._version
        self._lists.clear()

    def bookmark(self) -> None:
        """Send the current version to watches that asked for bookmarks."""
        self._version += 1
        for watch in self._watches:
            if watch.query.get("allowWatchBookmarks") == "true":
                watch.queue.put_nowait(
                    _line("BOOKMARK", {"kind": "Any", "metadata": {"resourceVersion": str(self._version)}})
                )

    def send(self, data: bytes) -> None:
        """Bytes as they are, into every watch."""
        for watch in self._watches:
            watch.queue.put_nowait(data)

    def end(self) -> None:
        """End every watch as the server does when its time is over."""
        for watch in self._watches:
            watch.queue.put_nowait(None)

    def cut(self) -> None:
        """Cut every watch's connection."""
        for watch in list(self._watches):
            if watch.request.transport is not None:
                watch.request.transport.abort()

    def fall_silent(self) -> None:
        """Send no more to open watches: their connections are dead without notice."""
        for watch in self._watches:
            watch.dead = True
        self._watches.clear()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = KubeRequest(request.path, dict(request.query))
        self.asked.append(asked)
        plural = request.path.rpartition("/")[2]
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return _status(401, "Unauthorized")
        if plural in self.absent:
            return web.Response(status=404, text="404 page not found\n")
        verb = "watch" if asked.watches else "list"
        if {plural, f"{verb} {plural}"} & self.denied:
            return _status(403, f'{plural} is forbidden: User "tester" cannot {verb} resource "{plural}"')
        if self.failing:
            code, headers = self.failing.pop(0)
            return _status(code, "it fails", headers)
        return await self._watch(request, asked) if asked.watches else self._list(asked)

    def _list(self, asked: KubeRequest) -> web.Response:
        query = asked.query
        if "continue" in query:
            version, rest = self._lists.pop(query["continue"], (0, []))
            if not version:
                return _status(410, "The provided continue parameter is too old")
        else:
            version = self._version
            rest = [each for each in self._objects.get(asked.path, {}).values() if _matches(each, query)]
        limit = int(query.get("limit") or 0)
        limit = min(limit, self.page) if limit and self.page else limit
        metadata = {"resourceVersion": str(version)}
        if limit and len(rest) > limit:
            metadata["continue"] = f"token-{len(self.asked)}"
            self._lists[metadata["continue"]] = version, rest[limit:]
            rest = rest[:limit]
        return web.json_response({"kind": "List", "metadata": metadata, "items": rest})

    async def _watch(self, request: web.Request, asked: KubeRequest) -> web.StreamResponse:
        since = int(asked.query.get("resourceVersion") or self._version)
        if since < self._oldest and not self.gone_in_stream:
            return _status(410, f"too old resource version: {since} ({self._oldest})")
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        if since < self._oldest:
            await response.write(_line("ERROR", failure(410, f"too old resource version: {since}")))
            return response
        if self.ends_at_once:
            return response
        watch = _Watch(asked.query, asked.path, asyncio.Queue(), request)
        if "resourceVersion" not in asked.query:
            for document in self._objects.get(asked.path, {}).values():
                if _matches(document, asked.query):
                    watch.queue.put_nowait(_line("ADDED", document))
        for event in self._events:
            if event.version > since:
                self._tell(watch, event)
        self._watches.add(watch)
        try:
            async with asyncio.timeout(float(asked.query.get("timeoutSeconds") or 1800)):
                while (data := await watch.queue.get()) is not None:
                    await response.write(data)
        except (TimeoutError, ConnectionError):
            if watch.dead:
                await asyncio.Event().wait()
        finally:
            self._watches.discard(watch)
        return response

    def _happened(self, event: Event) -> None:
        self._events.append(event)
        for watch in self._watches:
            self._tell(watch, event)

    def _tell(self, watch: _Watch, event: Event) -> None:
        if event.path != watch.path:
            return
        before = event.before is not None and _matches(event.before, watch.query)
        if event.after is not None and _matches(event.after, watch.query):
            watch.queue.put_nowait(_line("MODIFIED" if before else "ADDED", event.after))
        elif before and event.before is not None:
            last = event.before if event.after is None else event.after
            metadata = {**last["metadata"], "resourceVersion": str(event.version)}
            watch.queue.put_nowait(_line("DELETED", {**last, "metadata": metadata}))


def _path(kind: tuple[str, str], namespace: str) -> str:
    api, plural = kind
    return f"/{'apis' if '/' in api else 'api'}/{api}/namespaces/{namespace}/{plural}"


def _matches(document: Object, query: Mapping[str, str]) -> bool:
    labels = document["metadata"].get("labels", {})
    wanted = [part.split("=", 1) for part in query.get("labelSelector", "").split(",") if part]
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return all(labels.get(key) == value for key, value in wanted) and name in ("", document["metadata"]["name"])


def _line(kind: str, document: Object) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


def _status(code: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(failure(code, message), status=code, headers=headers)
