"""Wires the sidecar of an engine that answers requests whose prompt another one computes."""

from collections.abc import Iterable

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_engines.speaker import EngineSpeaker
from pointsman_hosting.service import Service
from pointsman_runtime.telling.logs import Log
from pointsman_worker_agent.adapters.pd_sidecar import PdSidecar
from pointsman_worker_agent.settings import WorkerAgentSettings

_log = Log("pd_sidecar")


class LegMetrics(Collector):
    """Legs by outcome, read at the scrape."""

    def __init__(self, sidecar: PdSidecar) -> None:
        self._sidecar = sidecar

    def collect(self) -> Iterable[Metric]:
        """Called by the registry."""
        legs = CounterMetricFamily(
            "pointsman_agent_prefill_legs",
            "Prompts that another engine was to compute for the one that answers",
            labels=["outcome"],
        )
        for outcome, count in self._sidecar.outcomes.items():
            legs.add_metric([outcome], count)
        yield legs


def serve_pd(service: Service[WorkerAgentSettings], speaker: EngineSpeaker, address: str) -> None:
    """Serve at `address` until the engine is drained."""
    settings = service.settings

    def kind() -> str:
        facts = speaker.status.facts
        return settings.engine if facts is None else facts.engine

    sidecar = PdSidecar(
        settings.engine_url,
        kind,
        allowed=settings.pd_prefillers,
        bootstrap_port=settings.pd_bootstrap_port,
        prefill_timeout_s=settings.pd_prefill_timeout_s,
    )
    service.registry.register(LegMetrics(sidecar))
    # A client that hangs up ends its request, and so both legs.
    runner = web.AppRunner(sidecar.app, handler_cancellation=True, access_log=None, auto_decompress=False)
    host, _, port = address.rpartition(":")

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, host.strip("[]") or "127.0.0.1", int(port)).start()
        _log.info("pd_sidecar_listening", address=address, engine=settings.engine_url)

    async def stop() -> None:
        await runner.cleanup()
        await sidecar.close()

    service.on_stop(stop)
    service.on_start(start)
