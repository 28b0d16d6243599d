"""Settings of the guard."""

from pydantic import Field

from pointsman_runtime.settings import ServiceSettings


class GuardSettings(ServiceSettings):
    """What a guard process can be told beside the settings of every service."""

    connections: int = Field(default=64, ge=1)
    """Requests that are sent to guardians over HTTP at once, all together."""
