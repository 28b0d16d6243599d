"""The metrics-collector's view of the configuration."""

from collections.abc import Iterator

from pointsman_core.config import Config, ConfigError
from pointsman_metrics_collector.domain.engines import kind


def check(config: Config, revision: int = 0) -> None:
    """Raise ConfigError for engines of an unknown kind; every other valid configuration is accepted."""
    del revision
    problems: list[tuple[str, str]] = []
    for path, engine in _engines(config):
        try:
            kind(engine)
        except ValueError as error:
            problems.append((path, str(error)))
    if problems:
        raise ConfigError(problems)


def _engines(config: Config) -> Iterator[tuple[str, str]]:
    """The path of each kind of engine in the configuration, and the kind."""
    for name, pool in config.pools.items():
        for position, entry in enumerate(pool.engines):
            yield f"pools.{name}.engines.{position}.engine", entry.engine
        if pool.kubernetes is not None:
            yield f"pools.{name}.kubernetes.engine", pool.kubernetes.engine
