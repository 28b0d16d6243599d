"""The policies of every pool at one configuration revision."""

from collections.abc import Mapping
from typing import Final

from pointsman_core.config import Config
from pointsman_core.plugins import Gathering
from pointsman_scheduler.domain.policy import Instances, Policy, PolicyRegistries, compile_policy


class PolicyBook:
    """Compiles revisions. Plugins whose configuration doesn't change are kept from one revision to the next."""

    def __init__(self, registries: PolicyRegistries) -> None:
        self._registries: Final = registries
        self._instances: Final[dict[str, Instances]] = {}

    def compile(self, config: Config) -> Mapping[str, Policy]:
        """The policy of each pool. Raises PluginError that names the faulty plugins; then nothing has changed."""
        wrong = Gathering()
        for name, settings in config.scheduling.items():  # policies that no pool uses must be valid as well
            with wrong.collect_errors_below():
                compile_policy(name, settings, self._registries)
        wrong.raise_gathered()
        return {
            pool: compile_policy(
                settings.scheduling,
                config.scheduling[settings.scheduling],
                self._registries,
                self._instances.setdefault(pool, Instances()),
            )
            for pool, settings in config.pools.items()
        }
