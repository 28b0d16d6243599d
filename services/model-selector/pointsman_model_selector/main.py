"""Wiring of the model-selector."""

from typing import Final

from pointsman_contracts.journey import Journey
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_embedding.embedders import Embedders
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_journey.content_client import ContentClient
from pointsman_model_selector.configuration import compile_all
from pointsman_model_selector.handlers import Handlers
from pointsman_model_selector.prompt_embedding import PromptEmbedder
from pointsman_model_selector.settings import ModelSelectorSettings

CONCURRENCY: Final = 1024
"""Most requests whose prompts are being embedded."""
EMBED_EVERY_S: Final = 2.0
"""How often examples are embedded again whose embedding failed."""


def build(service: Service[ModelSelectorSettings]) -> None:
    """Construct everything; connect to nothing."""
    embedder = PromptEmbedder(
        Embedders("prompts are compared by words"), ContentClient(service.journeys), service.registry
    )
    configuration = service.configuration(compile_all)
    configuration.on_change(lambda revision: embedder.prepare(revision.compiled.values()))
    handlers = Handlers(configuration, service.registry, time_every=service.settings.time_every, embedder=embedder)
    service.journeys.stage(Journey, handlers.select, concurrency=CONCURRENCY)
    service.every(EMBED_EVERY_S, embedder.embed_examples)
    service.on_stop(embedder.close)
    service.bus.listen(PoolSnapshot, handlers.snapshot, ANY, keep="latest")
    service.bus.listen(ModelStatistics, handlers.statistics, ANY, keep="latest")
    service.bus.listen(ResponseCompleted, handlers.completed, ANY)


PROGRAM = Program("model-selector", ModelSelectorSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    return run(PROGRAM)
