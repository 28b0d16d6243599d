"""Wiring of the model-selector."""

from pointsman_contracts.journey import Journey
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_model_selector.configuration import compile_all
from pointsman_model_selector.handlers import Handlers
from pointsman_model_selector.settings import ModelSelectorSettings


def build(service: Service[ModelSelectorSettings]) -> None:
    """Construct everything; connect to nothing."""
    handlers = Handlers(service.configuration(compile_all), service.registry, time_every=service.settings.time_every)
    service.journeys.stage(Journey, handlers.select)
    service.bus.listen(PoolSnapshot, handlers.snapshot, ANY, keep="latest")
    service.bus.listen(ModelStatistics, handlers.statistics, ANY, keep="latest")
    service.bus.listen(ResponseCompleted, handlers.completed, ANY)


PROGRAM = Program("model-selector", ModelSelectorSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    return run(PROGRAM)
