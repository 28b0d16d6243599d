"""An engine's HTTP surface whose every answer a test decides: a real server on a real port."""

import asyncio
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

from aiohttp import web

_LABELS = '{engine="0",model_name="m"}'


@dataclass
class FakeEngine:
    """`async with FakeEngine() as engine:` listens; change its fields while it runs."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prompt_tokens: int = 0
    started_at: float | None = 1.75e9
    """None: it doesn't say."""
    exposition: str | None = None
    """Instead of everything above."""
    filters: bool = True
    """Whether it answers `name[]` with those families alone, as prometheus_client does."""
    withheld: tuple[str, ...] = ()
    """Beginnings of names that such an answer leaves out all the same, as prometheus_client does with what
    collectors without a description collect; `("",)` for all of them."""
    healthy: bool = True
    models: object = field(default_factory=lambda: {"data": [{"id": "m", "max_model_len": 4096}]})
    models_status: int = 200
    port: int = 0
    """Kept from the first `start` on."""
    asked: list[str] = field(default_factory=list[str])
    """Path and query of every request, decoded."""

    def __post_init__(self) -> None:
        self._released = asyncio.Event()
        self._released.set()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        """Be gone: connections are cut, new ones refused."""
        if self._runner is not None:
            self._released.set()
            await self._runner.cleanup()
            self._runner = None

    def hang(self) -> None:
        """Hold every request without an answer."""
        self._released.clear()

    def release(self) -> None:
        """Answer again, also what is held."""
        self._released.set()

    def metrics(self) -> str:
        """The whole exposition."""
        if self.exposition is not None:
            return self.exposition
        lines = [
            f"vllm:num_requests_running{_LABELS} {self.running}.0",
            f"vllm:num_requests_waiting{_LABELS} {self.waiting}.0",
            f"vllm:kv_cache_usage_perc{_LABELS} {self.kv_usage}",
            f"vllm:prompt_tokens_total{_LABELS} {self.prompt_tokens}.0",
            'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0',
            f"vllm:time_to_first_token_seconds_count{_LABELS} 0.0",
        ]
        if self.started_at is not None:
            lines.insert(0, f"process_start_time_seconds {self.started_at}")
        return "\n".join(lines) + "\n"

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(unquote(request.raw_path))
        await self._released.wait()
        match request.path:
            case "/metrics":
                names = request.query.getall("name[]", []) if self.filters else []
                text = self.metrics()
                if names:
                    wanted = tuple(name + end for name in names for end in ("{", " "))
                    lines = (line for line in text.splitlines(keepends=True) if line.startswith(wanted))
                    text = "".join(line for line in lines if not line.startswith(self.withheld))
                return web.Response(text=text)
            case "/health":
                return web.Response(status=200 if self.healthy else 503)
            case "/v1/models":
                return web.json_response(self.models, status=self.models_status)
            case "/version":
                return web.json_response({"version": "0.11.2"})
            case _:
                return web.Response(status=404)
