"""Steady traffic against a door, with a record of how each request ended."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import aiohttp
from pydantic import JsonValue

from pointsman_testing.attendance import Attendance


@dataclass(frozen=True)
class Ended:
    """One request."""

    started: float
    """Seconds since the traffic began, when it was sent."""
    took: float
    """Seconds until the last byte, or until it failed."""
    status: int
    """HTTP status; 0 when there was no answer."""
    retry_after: str | None = None
    engine: str | None = None
    """The engine that served it, from `x-simulated-engine`."""
    problem: str = ""


@dataclass
class Traffic:
    """Open-loop traffic: a request starts every `1 / rate` seconds, independent of earlier ones."""

    url: str
    """The URL, e.g. `http://127.0.0.1:8080/v1/completions`."""
    rate: float
    body: Mapping[str, JsonValue] | Callable[[], Mapping[str, JsonValue]]
    """The body of every request, or a function that makes the next one."""
    timeout: float = 20.0
    """Seconds after which a request counts as hanging (status 0)."""
    ended: list[Ended] = field(default_factory=list[Ended])
    _begun: float = 0.0
    _running: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])
    _sender: "asyncio.Task[None] | None" = None

    async def __aenter__(self) -> "Traffic":
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=self.timeout)
        )
        self._begun = time.monotonic()
        self._sender = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send no more, and wait until every request has ended."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])
        await asyncio.gather(*self._running)
        await self._http.close()

    @property
    def now(self) -> float:
        """Seconds since the traffic began."""
        return time.monotonic() - self._begun

    def statuses(self, since: float = 0.0, until: float = float("inf")) -> Counter[int]:
        """The number of requests sent in this span, by the status they ended with."""
        return Counter(end.status for end in self.ended if since <= end.started < until)

    def failed(self) -> list[Ended]:
        """Every request that didn't end with 200."""
        return [end for end in self.ended if end.status != 200]

    def while_all_ran(self, ends: Iterable[Ended], attendance: Attendance, *stopped: int) -> list[Ended]:
        """The requests during which every process ran, apart from those with these ids, which the test itself stopped
        or killed."""
        return [
            end
            for end in ends
            if not attendance.stood_still(self._begun + end.started, self._begun + end.started + end.took, *stopped)
        ]

    async def _send(self) -> None:
        sent = 0
        while True:
            task = asyncio.create_task(self._one())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            sent += 1
            await asyncio.sleep(max(0.0, self._begun + sent / self.rate - time.monotonic()))

    async def _one(self) -> None:
        body = self.body() if callable(self.body) else self.body
        started = self.now
        status, retry_after, engine, problem = 0, None, None, ""
        try:
            async with self._http.post(self.url, json=body) as response:
                retry_after = response.headers.get("Retry-After")
                engine = response.headers.get("x-simulated-engine")
                text = await response.text()
                status = response.status
                problem = "" if status == 200 else text[:300]
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = f"{type(error).__name__}: {error}"
        self.ended.append(Ended(started, self.now - started, status, retry_after, engine, problem))
