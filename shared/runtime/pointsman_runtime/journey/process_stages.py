"""The stages that run in one process, and the peers that its services know."""

from typing import Final, NamedTuple

from pointsman_runtime.bus.hub import Hub
from pointsman_runtime.bus.mailbox import Fifo
from pointsman_runtime.journey.roster import Roster


class LocalStage(NamedTuple):
    """A stage of this process that takes work."""

    instance: str
    mailbox: Fifo


class ProcessStages:
    """Shared by the services of one process: a hop between two of them is a call."""

    def __init__(self, hub: Hub) -> None:
        self.roster: Final = Roster(hub.link, hub.tallies)
        self.stages: Final[dict[str, LocalStage]] = {}
        """Request stages by service."""
        self.reviewers: Final[dict[str, LocalStage]] = {}
        """Response stages by service."""
