"""The recorder's view of the configuration."""

from pointsman_core.config import Config


def check(config: Config) -> None:
    """Accepts any configuration: records name the policy that decided them."""
    del config
