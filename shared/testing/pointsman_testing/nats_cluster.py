"""A cluster of three NATS servers, as local processes, of which a test may kill, stop and start each."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from pointsman_runtime.bus.lasting_client import LastingClient
from pointsman_testing.eventually import eventually
from pointsman_testing.nats_server import LocalNatsServer
from pointsman_testing.ports import free_port

SERVERS: Final = 3
START_S: Final = 60.0
_NOTED: Final = 3000
"""Characters of each server's log that a failed test shows."""


class NatsCluster:
    """Three servers with JetStream. Each has a name, and all of them know each other. Implements `NatsServer`."""

    def __init__(self) -> None:
        self.url = ""
        """All of them, as `POINTSMAN_NATS_URL` has them, once they are started."""
        ports = [free_port() for _ in range(SERVERS)]
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
        self.servers: Final = [
            LocalNatsServer(
                f"server_name: n{number}\nlame_duck_grace_period: 100ms\n"
                f"cluster: {{name: test, listen: 127.0.0.1:{port}, routes: [{routes}]}}"
            )
            for number, port in enumerate(ports)
        ]

    @property
    def urls(self) -> list[str]:
        """The servers' addresses, in their order."""
        return [server.url for server in self.servers]

    def start(self) -> None:
        """Start all servers, at the same time, so that the first election has voters; they know JetStream's leader
        then."""
        before = self._elections()
        with ThreadPoolExecutor(SERVERS) as starting:
            list(starting.map(LocalNatsServer.start, self.servers))
        deadline = time.monotonic() + START_S
        while any(now == then for now, then in zip(self._elections(), before, strict=True)):
            if time.monotonic() > deadline:
                logs = "\n".join(server.log_path.read_text()[-_NOTED:] for server in self.servers)
                raise RuntimeError(f"JetStream has no leader:\n{logs}")
            time.sleep(0.05)
        self.url = ",".join(self.urls)

    def _elections(self) -> list[int]:
        """How often each server has heard of a new leader of JetStream."""
        logs = [server.log_path.read_text() if server.log_path.exists() else "" for server in self.servers]
        return [log.count("metadata leader") for log in logs]

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def pause(self) -> None:
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        for server in self.servers:
            server.resume()

    def close(self) -> None:
        for server in self.servers:
            server.close()

    @asynccontextmanager
    async def client(self) -> AsyncGenerator["ClusterClient"]:
        """A client of whichever server answers."""
        client = LastingClient()
        await client.connect(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
            self.urls,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - seconds, as a number
            ping_interval=1,
            error_cb=_ignore,
        )
        try:
            yield ClusterClient(client)
        except AssertionError as error:
            for server in self.servers:
                error.add_note(server.log_path.read_text()[-_NOTED:])
            raise
        finally:
            await client.close()


class ClusterClient:
    """Asks JetStream's API."""

    def __init__(self, client: LastingClient) -> None:
        self.client: Final = client

    async def api(self, subject: str, **request: object) -> dict[str, Any] | None:
        """The answer; None when there is none, or it is an error."""
        try:
            answer = await self.client.request(f"$JS.API.{subject}", json.dumps(request).encode(), timeout=2.0)
        except (NatsError, TimeoutError):
            return None
        found = cast("dict[str, Any]", json.loads(answer.data))
        return None if "error" in found else found

    async def make_stream(self, name: str, **config: object) -> None:
        """Make a stream, as soon as JetStream does that."""

        async def made() -> bool:
            return await self.api(f"STREAM.CREATE.{name}", name=name, **config) is not None

        await eventually(made, timeout=START_S)

    async def leader(self, stream: str) -> int:
        """Number of the server that leads this stream; waits until one does."""

        async def leader() -> list[int]:
            info = await self.api(f"STREAM.INFO.{stream}")
            name = cast("str", info["cluster"].get("leader", "")) if info else ""
            return [int(name[1:])] if name else []

        [number] = await eventually(leader, timeout=START_S)
        return number

    async def in_step(self, stream: str) -> None:
        """Wait until every replica has everything."""

        async def current() -> bool:
            info = await self.api(f"STREAM.INFO.{stream}")
            replicas: list[dict[str, Any]] = info["cluster"].get("replicas", []) if info else []
            return len(replicas) == SERVERS - 1 and all(each["current"] for each in replicas)

        await eventually(current, timeout=START_S)

    async def messages(self, stream: str, subjects: str, *, headers_only: bool = False) -> list[Msg]:
        """Every message that the stream has, of these subjects."""
        js = self.client.jetstream(timeout=5)  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py

        async def subscribed() -> JetStreamContext.PushSubscription | None:
            try:
                return await js.subscribe(subjects, stream=stream, ordered_consumer=True, headers_only=headers_only)
            except (NatsError, TimeoutError):
                return None  # the cluster has no leader

        reader = await eventually(subscribed, timeout=START_S)
        found: list[Msg] = []
        while not found or found[-1].metadata.num_pending:
            found.append(await reader.next_msg(timeout=START_S))
        await reader.unsubscribe()
        return found

    async def step_down(self, stream: str) -> None:
        """Have another server lead this stream."""
        await self.api(f"STREAM.LEADER.STEPDOWN.{stream}")


async def _ignore(error: Exception) -> None:
    await asyncio.sleep(0)
    del error
