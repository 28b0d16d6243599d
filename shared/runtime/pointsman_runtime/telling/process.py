"""The name of a process on the bus."""

from dataclasses import dataclass

from pointsman_contracts.subjects import inbox, token


@dataclass(frozen=True)
class Process:
    """Service, instance and version of a process."""

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
