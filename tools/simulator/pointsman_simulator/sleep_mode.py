"""vLLM's sleep mode: `/sleep`, `/wake_up` and `/is_sleeping`, as with `--enable-sleep-mode` and
`VLLM_SERVER_DEV_MODE=1`. Requests that come while it sleeps wait until it is awake."""

import asyncio
from typing import Final

import orjson
from aiohttp import web

from pointsman_simulator.faults import FaultPlan

PARTS: Final[tuple[str, ...]] = ("weights", "kv_cache")
LEVELS: Final = {"awake": 0, "weights_offloaded": 1, "discard_all": 2}
"""Values of the label `sleep_state`, with their levels."""


class SleepMode:
    """Whether the engine sleeps, and how deeply."""

    def __init__(self, *, offered: bool, wake_s: float) -> None:
        """`offered`: whether it has the paths. `wake_s`: how long it takes to wake."""
        self.level = 0
        """0: awake. 1: its weights are in host memory. 2: they are lost."""
        self.wakes = 0
        """Times that it was asked to wake while it slept."""
        self.faults = FaultPlan()
        self._offered: Final = offered
        self._wake_s: Final = wake_s
        self._awake: Final = asyncio.Event()
        self._awake.set()
        self._missing: set[str] = set()

    def add_routes(self, app: web.Application) -> None:
        if self._offered:
            app.router.add_post("/sleep", self._sleep)
            app.router.add_post("/wake_up", self._wake_up)
            app.router.add_get("/is_sleeping", self._is_sleeping)

    async def wait_awake(self, path: str) -> None:
        """Hold a request for inference back."""
        if self.level and path.startswith("/v1/") and path != "/v1/models":
            await self._awake.wait()

    async def _sleep(self, request: web.Request) -> web.Response:
        self._fall_asleep(2 if request.query.get("level") == "2" else 1)
        return web.Response()

    async def _wake_up(self, request: web.Request) -> web.Response:
        if not self.level:
            return web.Response()
        self.wakes += 1
        if self.faults.has("wake-hang"):
            await asyncio.Event().wait()
        if self.faults.has("wake-ignored"):
            return web.Response()
        await asyncio.sleep(self._wake_s)
        self._missing -= set(request.query.getall("tags", PARTS))
        if not self._missing:
            level, self.level = self.level, 0
            self._awake.set()
            if self.faults.has("wake-short"):
                asyncio.get_running_loop().call_soon(self._fall_asleep, level)
        return web.Response()

    async def _is_sleeping(self, _: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps({"is_sleeping": self.level > 0}), content_type="application/json")

    def _fall_asleep(self, level: int) -> None:
        self.level, self._missing = level, {*PARTS}
        self._awake.clear()
