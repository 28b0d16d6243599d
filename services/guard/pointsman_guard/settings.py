"""Settings of the guard."""

from pydantic import Field

from pointsman_runtime.configuring.settings import ServiceSettings


class GuardSettings(ServiceSettings):
    """Settings of a guard process, beside those of every service."""

    thread_above: int = Field(default=32768, ge=0)
    """Texts with more characters are checked in a thread, so that other requests don't wait for them."""
    connections: int = Field(default=64, ge=1)
    """Most concurrent requests to guardians over HTTP, in total."""
