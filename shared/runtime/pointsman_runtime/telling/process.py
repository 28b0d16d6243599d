"""Who a process is, on the bus."""

from dataclasses import dataclass

from pointsman_contracts.subjects import inbox, token


@dataclass(frozen=True)
class Process:
    """Who this process is."""

    service: str
    """Name of the service and of its queue group, e.g. `scheduler`."""
    instance: str
    """Unique among all processes."""
    version: str = "0"
    user: str = ""
    """Login at the NATS server, which decides where its inbox may be; empty for the service's name."""

    @property
    def inbox(self) -> str:
        """Where answers to this process arrive."""
        return f"{inbox(self.user or self.service)}.{token(self.instance)}"
