"""Settings of the console, beside those of every service."""

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.configuring.urls import is_loopback


class ConsoleSettings(ServiceSettings):
    """`POINTSMAN_<NAME>` in the environment."""

    host: str = "127.0.0.1"
    """Where browsers are served."""
    port: int = Field(default=8090, ge=0, le=65535)
    """0 takes a free port, which the log names."""
    open_to_all: bool = False
    """Allow `host` to be reachable from other hosts. Every page still asks for a key."""
    https: bool = False
    """Browsers come over TLS, which a proxy ends: the session's cookie is for TLS alone."""

    one_time_token: SecretStr | None = None
    """Opens one session without a key, once in the life of this process; at least 32 characters. `pointsman up` makes
    one and prints it within an address."""
    session_s: float = Field(default=12 * 3600.0, gt=0)
    """How long a session lasts."""

    writes: bool = False
    """Allow the scope `console:write` to roll the configuration back, and to drain engines."""
    operator_user: str | None = None
    """NATS login that makes these changes; the console's own login may not. Needed with `writes` on a
    server with accounts."""
    operator_password: SecretStr | None = None

    results_dir: Path | None = None
    """Folder of results of `pointsman replay --json`, `simulate --json` and `regret --json`."""

    @model_validator(mode="after")
    def _refuse_strangers(self) -> Self:
        if not self.open_to_all and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} is reachable from other hosts; listen on 127.0.0.1, or set "
                "POINTSMAN_OPEN_TO_ALL=true, with a proxy in front that ends TLS and POINTSMAN_HTTPS=true"
            )
        return self

    @model_validator(mode="after")
    def _refuse_a_token_that_can_be_guessed(self) -> Self:
        token = self.one_time_token
        if token is not None and len(token.get_secret_value()) < 32:
            raise ValueError("one_time_token: it has fewer than 32 characters")
        return self
