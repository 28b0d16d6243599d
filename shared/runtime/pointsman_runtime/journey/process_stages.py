"""The stages that run in one process, the bodies that its edges hold, and the peers that its services know."""

from collections.abc import Callable
from typing import Final

from pointsman_runtime.bus.hub import Hub
from pointsman_runtime.journey.review_stage import ReviewStage
from pointsman_runtime.journey.roster import Roster
from pointsman_runtime.journey.stage import StageRunner

BodyOf = Callable[[str, bool], bytes | None]
"""The body of a request, by its id, as the client sent it (True) or as the engine gets it; None when its edge no longer
holds it."""


class ProcessStages:
    """Shared by the services of one process: a hop between two of them is a call."""

    def __init__(self, hub: Hub) -> None:
        self.roster: Final = Roster(hub.link, hub.tallies)
        self.stages: Final[dict[str, StageRunner]] = {}
        """Request stages that take work, by service."""
        self.reviewers: Final[dict[str, ReviewStage]] = {}
        """Response stages that take work, by service."""
        self.bodies: Final[dict[str, BodyOf]] = {}
        """Bodies of open requests, by the instance of their edge."""
