"""Wiring of the guard."""

from concurrent.futures import ThreadPoolExecutor

from pointsman_contracts.journey import Journey
from pointsman_core.config import Config
from pointsman_guard.adapters.reach import Reach
from pointsman_guard.aside import Aside
from pointsman_guard.configuration import compile_all
from pointsman_guard.domain.policy import GuardPolicy
from pointsman_guard.handlers import Handlers
from pointsman_guard.metrics import GuardMetrics
from pointsman_guard.settings import GuardSettings
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_journey.content_client import ContentClient


def build(service: Service[GuardSettings]) -> None:
    """Construct everything; connect to nothing."""
    outside = Reach(service.settings.connections)

    def compiled(config: Config, revision: int) -> dict[str, GuardPolicy]:
        del revision
        return compile_all(config, outside)

    threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="long-texts")
    handlers = Handlers(
        service.configuration(compiled),
        ContentClient(service.journeys),
        GuardMetrics(service.registry),
        service.process,
        Aside(threads, service.settings.thread_above),
    )
    service.journeys.stage(Journey, handlers.guard)
    service.journeys.handle_reviews(handlers.review)

    async def end() -> None:
        threads.shutdown(wait=False, cancel_futures=True)
        await outside.close()

    service.on_stop(end)


PROGRAM = Program("guard", GuardSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    return run(PROGRAM)
