"""Two whole services, as small as they can be; the process tests run them: `sample_service.py <service>`."""

import sys

from pointsman_contracts.journey import Journey, PreprocessRequest, RequestFacts, Stage, Target
from pointsman_contracts.reply import ChosenEndpoint, Decision
from pointsman_core.config import Config
from pointsman_hosting.configuration import Configuration
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_journey.hop import Hop, Outcome
from pointsman_runtime.configuring.settings import ServiceSettings


class Handlers:
    """Sends every request to one endpoint."""

    def __init__(self, instance: str, configuration: Configuration[tuple[str, ...]]) -> None:
        self._instance = instance
        self._configuration = configuration

    def schedule(self, journey: Journey, hop: Hop[Journey]) -> Outcome:
        """Decide at once."""
        revision = self._configuration.revisions[journey.revision]
        if journey.target is None or journey.target.pool not in revision.compiled:
            return hop.reject(404, "no such pool", code="model_not_found")
        return Decision(
            request_id=journey.request_id,
            revision=revision.number,
            profile=journey.profile or "standard",
            model=journey.model,
            target=journey.target,
            endpoints=(ChosenEndpoint(worker="w", url="http://127.0.0.1:1"),),
            scheduler=self._instance,
        )


def compile_pools(config: Config, revision: int) -> tuple[str, ...]:
    """The names of the pools."""
    return tuple(config.pools)


def reduce_to_facts(request: PreprocessRequest, hop: Hop[PreprocessRequest]) -> Outcome:
    """Send every request to the scheduler of one pool."""
    return Journey(
        request_id=request.request_id,
        edge=request.edge,
        attempt=request.attempt,
        received_ms=request.received_ms,
        deadline_ms=request.deadline_ms,
        revision=request.revision,
        request=RequestFacts(api="chat.completions", body_bytes=len(hop.body)),
        model="llama-8b",
        target=Target(model="llama-8b", pool="llama-8b"),
        itinerary=(Stage(service="scheduler"),),
        trail=(hop.report(),),
    )


def build_scheduler(service: Service[ServiceSettings]) -> None:
    """Compose the scheduler."""
    handlers = Handlers(service.process.instance, service.configuration(compile_pools))
    service.journeys.stage(Journey, handlers.schedule)


def build_preprocessor(service: Service[ServiceSettings]) -> None:
    """Compose the preprocessor."""
    service.journeys.stage(PreprocessRequest, reduce_to_facts)


SERVICES = {"scheduler": build_scheduler, "preprocessor": build_preprocessor}

if __name__ == "__main__":
    name = sys.argv[1]
    sys.exit(run(Program(name, ServiceSettings, SERVICES[name], "pointsman-runtime")))
