"""Wiring of the mirror."""

import os

from pointsman_contracts.batch import LENT_BUCKET
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_edge.reviewing.after_answer import LARGEST
from pointsman_hosting.host import run
from pointsman_hosting.own_door import OwnDoor
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_journey.content_client import ContentClient
from pointsman_mirror.configuration import compile_mirrors
from pointsman_mirror.copier import Copier
from pointsman_mirror.handlers import Handlers
from pointsman_mirror.identities import Identities
from pointsman_mirror.metrics import MirrorMetrics
from pointsman_mirror.settings import MirrorSettings


def build(service: Service[MirrorSettings]) -> None:
    """Construct everything; connect to nothing."""
    metrics = MirrorMetrics(service.registry, lambda: copier.open_copies)
    copier = Copier(
        service.process.instance,
        OwnDoor(service.settings.gateway_url, LARGEST),
        Identities(service.open_bucket(LENT_BUCKET)),
        service.bus.publish,
        metrics,
    )
    handlers = Handlers(
        service.process.instance,
        service.configuration(compile_mirrors),
        ContentClient(service.journeys),
        copier,
        metrics,
    )
    service.journeys.handle_reviews(handlers.review)
    service.bus.listen(ResponseCompleted, copier.note_end, ANY)
    service.on_stop(copier.close)


PROGRAM = Program("mirror", MirrorSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    # No client waits for a copy: on a shared machine, the processes that serve requests go first.
    os.nice(5)
    return run(PROGRAM)
