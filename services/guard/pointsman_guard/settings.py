"""Settings of the guard."""

from pydantic import Field

from pointsman_runtime.configuring.settings import ServiceSettings


class GuardSettings(ServiceSettings):
    """What a guard process can be told beside the settings of every service."""

    thread_above: int = Field(default=32768, ge=0)
    """Characters above which texts are checked in a thread, so that nothing else waits for them."""
    connections: int = Field(default=64, ge=1)
    """Requests that are sent to guardians over HTTP at once, all together."""
