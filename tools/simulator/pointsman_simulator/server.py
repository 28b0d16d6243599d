"""The engine behind HTTP, as vLLM looks from outside."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson
from aiohttp import web

from pointsman_simulator.api import ApiError, model_list
from pointsman_simulator.engine import EngineConfig, PassResult
from pointsman_simulator.exposition import SimulatedMetrics
from pointsman_simulator.faults import Fault, FaultPlan, parse_fault
from pointsman_simulator.inference import Inference, ModelConfig, stall
from pointsman_simulator.rank import EngineRank
from pointsman_simulator.sleep_mode import SleepMode
from pointsman_simulator.vocabulary import Vocabulary

if TYPE_CHECKING:
    from pointsman_simulator.kv_publisher import KvPublisher

_LARGEST_BODY: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerConfig:
    model: ModelConfig
    engine: EngineConfig = field(default_factory=EngineConfig)
    """The engine of each rank."""
    ranks: int = 1
    """Data-parallel ranks."""
    host: str = "127.0.0.1"
    port: int = 0
    name: str = ""
    """Sent back as `x-simulated-engine`, so that a test sees who answered."""
    api_key: str | None = None
    faults: tuple[Fault, ...] = ()
    admin_port: int | None = None
    """Port for changing faults at run time (0: any port); None, the default: none."""
    drain_s: float = 30.0
    tokenizer: Path | None = None
    """Folder of a tokenizer; None for four bytes a token."""
    kv_events: str | None = None
    """ZeroMQ endpoint of the first rank's KV events, e.g. `tcp://127.0.0.1:*`; None publishes none."""
    kv_replay: str | None = None
    """Endpoint that sends them again on request."""
    sleep_mode: bool = False
    """Whether it has vLLM's paths for sleeping and waking."""
    wake_s: float = 0.0
    """How long it takes to wake."""


class SimulatedEngine:
    """One HTTP engine. `start`, then `drain` and `stop`."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.port = config.port
        self.admin_port = config.admin_port
        self.publishers: tuple[KvPublisher, ...] = () if config.kv_events is None else _publishers(config)
        self._ranks = [
            EngineRank(number, config.engine, publisher, self._observe_pass)
            for number, publisher in enumerate(self.publishers or [None] * config.ranks)
        ]
        self._sleep = SleepMode(offered=config.sleep_mode, wake_s=config.wake_s)
        self._metrics = SimulatedMetrics([rank.core for rank in self._ranks], config.model.models, self._sleep)
        self._headers = {"x-simulated-engine": config.name} if config.name else {}
        vocabulary = Vocabulary() if config.tokenizer is None else _tokenizer(config.tokenizer)
        self._inference = Inference(
            config=config.model,
            ranks=self._ranks,
            metrics=self._metrics,
            headers=self._headers,
            vocabulary=vocabulary,
        )
        self._runner = web.AppRunner(
            self._application(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )
        self._admin_runner = web.AppRunner(self._admin_application(), access_log=None, shutdown_timeout=0.1)
        self._site: web.TCPSite | None = None
        self._passes: list[asyncio.Task[None]] = []
        self._open_requests = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        await self._runner.setup()
        await self._listen()
        if self.config.admin_port is not None:
            await self._admin_runner.setup()
            await web.TCPSite(self._admin_runner, self.config.host, self.config.admin_port).start()
            self.admin_port = self._admin_runner.addresses[0][1]
        for publisher in self.publishers:
            publisher.start()
        self._passes = [asyncio.create_task(rank.driver.run()) for rank in self._ranks]
        await self._set_faults(self.config.faults)

    async def drain(self) -> None:
        """Stop listening, answer new requests on open connections with 503, wait for those in flight."""
        self._draining = True
        if self._site is not None:
            await self._site.stop()
            self._site = None
        try:
            await asyncio.wait_for(self._idle.wait(), self.config.drain_s)
        except TimeoutError:
            print(f"drain timed out with {self._open_requests} requests open", flush=True)

    async def stop(self) -> None:
        for passes in self._passes:
            passes.cancel()
        await self._runner.cleanup()
        await self._admin_runner.cleanup()
        for publisher in self.publishers:
            publisher.close()

    def _observe_pass(self, rank: int, result: PassResult) -> None:
        self._metrics.observe_pass(rank, result)

    async def _set_faults(self, faults: tuple[Fault, ...]) -> None:
        self._inference.faults = self._sleep.faults = plan = FaultPlan(faults)
        self._metrics.hidden, self._metrics.idle = plan.list_ranks("hide-rank"), plan.list_ranks("idle-rank")
        for rank in self._ranks:
            rank.driver.slow_down(plan.slowness)
        if plan.refuses and self._site is not None:
            await self._site.stop()
            self._site = None
            if self._runner.server is not None:
                for connection in self._runner.server.connections:
                    connection.force_close()
        elif not plan.refuses and self._site is None and not self._draining:
            await self._listen()

    async def _listen(self) -> None:
        site = web.TCPSite(self._runner, self.config.host, self.port, reuse_address=True, backlog=1024)
        await site.start()
        self._site = site
        self.port = self._runner.addresses[0][1]

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=_LARGEST_BODY, middlewares=[self._guarded])
        app.router.add_post("/v1/chat/completions", self._inference.answer_chat)
        app.router.add_post("/v1/completions", self._inference.answer_completion)
        app.router.add_post("/v1/embeddings", self._inference.answer_embeddings)
        app.router.add_post("/v1/responses", self._inference.answer_response)
        app.router.add_post("/v1/messages", self._inference.answer_message)
        app.router.add_post("/v1/messages/count_tokens", self._inference.answer_token_count)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ping", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._exposition)
        app.router.add_get("/metrics/", self._some_metrics)
        self._sleep.add_routes(app)
        return app

    def _admin_application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/faults", self._get_faults)
        app.router.add_put("/faults", self._put_faults)
        app.router.add_delete("/faults", self._delete_faults)
        app.router.add_get("/state", self._state)
        return app

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Keys, draining and error shapes, around every handler."""
        self._open_requests += 1
        self._idle.clear()
        try:
            if self._inference.faults.stalls_everything:
                await stall()
            await self._sleep.wait_awake(request.path)
            refusal = self._refusal(request)
            return self._error(refusal, request) if refusal else await handler(request)
        except ApiError as error:
            return self._error(error, request)
        except web.HTTPException as error:
            kind = error.reason.replace(" ", "") + "Error"
            return self._error(ApiError(error.status, error.reason, kind), request)
        finally:
            self._open_requests -= 1
            if not self._open_requests:
                self._idle.set()

    def _refusal(self, request: web.Request) -> ApiError | None:
        if self._draining and request.method == "POST":
            return ApiError(503, "the engine is shutting down", "ServiceUnavailableError")
        key = self.config.api_key
        given = request.headers.get("authorization")
        if key is not None and request.path.startswith("/v1") and given != f"Bearer {key}":
            return ApiError(401, "Unauthorized", "AuthenticationError")
        return None

    def _error(self, error: ApiError, request: web.Request) -> web.Response:
        body = error.encode_error(request.path)
        return web.Response(body=body, status=error.status, content_type="application/json", headers=self._headers)

    async def _models(self, _: web.Request) -> web.Response:
        model = self.config.model
        return _json(model_list(model.models, model.loras, model.max_model_len))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self._draining else 200)

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": "0.1.0+simulated"})

    async def _exposition(self, _: web.Request) -> web.Response:
        headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.render_text(), headers=headers)

    async def _some_metrics(self, request: web.Request) -> web.Response:
        """As prometheus_client's own page, which vLLM has here."""
        names = request.query.getall("name[]", [])
        headers = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.render_text(names), headers=headers)

    async def _get_faults(self, _: web.Request) -> web.Response:
        return _json({"faults": [asdict(fault) for fault in self._inference.faults.faults]})

    async def _put_faults(self, request: web.Request) -> web.Response:
        try:
            texts = orjson.loads(await request.read())["faults"]
            faults = tuple(parse_fault(str(text)) for text in texts)
        except (ValueError, TypeError, KeyError) as error:
            return _json({"error": f'expected {{"faults": ["kind[=value][@share]", …]}}: {error}'}, 400)
        await self._set_faults(faults)
        return await self._get_faults(request)

    async def _delete_faults(self, request: web.Request) -> web.Response:
        await self._set_faults(())
        return await self._get_faults(request)

    async def _state(self, _: web.Request) -> web.Response:
        ranks = [rank.describe_state() for rank in self._ranks]
        whole = {name: sum(rank[name] for rank in ranks) for name in ranks[0]}
        whole["kv_usage"] /= len(ranks)
        return _json({**whole, "open_requests": self._open_requests, "wakes": self._sleep.wakes, "ranks": ranks})


async def run_server(config: ServerConfig, announce: Callable[[SimulatedEngine], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `announce` is called once it listens."""
    engine = SimulatedEngine(config)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await engine.start()
    announce(engine)
    await stopping.wait()
    await engine.drain()
    await engine.stop()


# Imported only by the engines that need them: most start without ZeroMQ and tokenizers.
def _publishers(config: ServerConfig) -> "tuple[KvPublisher, ...]":
    from pointsman_simulator.kv_publisher import bind_publishers

    return bind_publishers(config.kv_events or "", config.kv_replay, config.ranks)


def _tokenizer(folder: Path) -> Vocabulary:
    from pointsman_simulator.tokenizer_vocabulary import TokenizerVocabulary

    return TokenizerVocabulary(folder)


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
