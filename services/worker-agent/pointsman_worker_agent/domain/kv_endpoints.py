"""The endpoints of an engine's KV events."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvEndpoints:
    """The endpoints of one rank."""

    live: str
    """e.g. `tcp://127.0.0.1:5557`."""
    replay: str | None = None
    topic: str = ""
    """Prefix of the topics to subscribe to."""

    def of_rank(self, rank: int) -> "KvEndpoints":
        """Each data-parallel rank uses the port after that of the rank before it."""
        return KvEndpoints(_shifted(self.live, rank), _shifted(self.replay, rank) if self.replay else None, self.topic)


def _shifted(endpoint: str, by: int) -> str:
    head, colon, port = endpoint.rpartition(":")
    return f"{head}{colon}{int(port) + by}" if by and port.isdigit() else endpoint
