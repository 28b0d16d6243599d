"""The console refuses no configuration: it shows the ones that services run."""

from pointsman_core.config import Config


def check(config: Config) -> None:
    """Accept it."""
    del config
