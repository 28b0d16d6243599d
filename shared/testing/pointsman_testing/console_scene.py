"""A console as a process, and browsers without a screen before it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final

import httpx

from pointsman_contracts.api_key import KEYS_BUCKET, ApiKey
from pointsman_contracts.message import read_fields
from pointsman_runtime.jetstream.stores import CONFIG_BUCKET, CONFIG_KEY
from pointsman_testing.nats_server import NatsServer
from pointsman_testing.observer import Observer
from pointsman_testing.processes import Processes, ServiceProcess

TOKEN: Final = "a-token-of-the-test,of-more-than-thirty-two-characters"  # noqa: S105 - of tests


class ConsoleScene:
    """A server, and a console on it."""

    def __init__(self, server: NatsServer, seen: Observer, processes: Processes) -> None:
        self.server = server
        self.seen = seen
        self.processes = processes
        self.url = ""
        self.console: ServiceProcess | None = None

    async def start(self, **env: str) -> None:
        """Start the console, and wait until it serves."""
        own = {"POINTSMAN_NATS_URL": self.server.url, "POINTSMAN_PORT": "0", "POINTSMAN_ONE_TIME_TOKEN": TOKEN}
        self.console = self.processes.fork("pointsman-console", env=own | env)
        await self.console.wait_ready()
        [serving] = [line for line in self.console.log_lines() if line.get("event") == "serving"]
        self.url = str(serving["url"])

    async def key(self, key: str, *scopes: str, **facts: object) -> None:
        """Store a key, as `pointsman keys create` does."""
        record = read_fields(ApiKey, {"id": key, "tenant": "ops", "scopes": scopes} | facts)
        bucket = await self.seen.js.create_key_value(bucket=KEYS_BUCKET)  # pyright: ignore[reportUnknownMemberType]
        await bucket.put(sha256(key.encode()).hexdigest(), record.encode())

    async def forget_key(self, key: str) -> None:
        """Revoke a key, like `pointsman keys revoke`."""
        bucket = await self.seen.js.key_value(KEYS_BUCKET)
        await bucket.delete(sha256(key.encode()).hexdigest())

    async def configure(self, text: str) -> int:
        """Store a configuration; its revision."""
        bucket = await self.seen.js.create_key_value(bucket=CONFIG_BUCKET, history=64)  # pyright: ignore[reportUnknownMemberType]
        return await bucket.put(CONFIG_KEY, text.encode())

    def client(self) -> httpx.AsyncClient:
        """A browser without a session."""
        return httpx.AsyncClient(base_url=self.url, timeout=60)

    @asynccontextmanager
    async def logged_in(self, key: str = "") -> AsyncGenerator[httpx.AsyncClient]:
        """A browser with a session, by a key or the one-time token; its changes name the session's token."""
        async with self.client() as client:
            answer = await client.post("/api/login", json={"key": key} if key else {"token": TOKEN})
            answer.raise_for_status()
            client.headers["x-csrf-token"] = answer.json()["csrf"]
            yield client


async def beginning(client: httpx.AsyncClient, path: str, until: Callable[[str], bool]) -> str:
    """The text of a stream up to the point at which `until` holds."""
    text = ""
    async with asyncio.timeout(60), client.stream("GET", path) as answer:
        answer.raise_for_status()
        async for chunk in answer.aiter_text():
            text += chunk
            if until(text):
                break
    return text
