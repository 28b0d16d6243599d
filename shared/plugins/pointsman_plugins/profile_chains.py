"""The request processors of every profile of one configuration revision, ready to run."""

import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, Literal, NamedTuple

from pointsman_contracts.journey import Journey, StageReport
from pointsman_core.config import Config, ConfigError, PluginUse
from pointsman_core.plugins import PluginError
from pointsman_core.refusal import Refusal
from pointsman_plugins.registry import Registry
from pointsman_plugins.request_edits import SetFields, SetHeaders
from pointsman_plugins.routing import ProfileProcessor, RoutedRequest
from pointsman_plugins.timed_processor import TimedProcessor

BUILTIN: Final[tuple[type[ProfileProcessor], ...]] = (SetHeaders, SetFields, TimedProcessor)
NOTE_LIMIT: Final = 256
"""Most characters of a processor's note that are kept."""

Place = Literal["before_model", "after_model"]


class Processed(NamedTuple):
    """The outcome of a chain."""

    journey: Journey
    """With a report of each processor that ran."""
    refusal: Refusal | None
    """The last one ended the request."""


class ProfileChains:
    """The chains of one place: of at least one profile."""

    def __init__(self, chains: Mapping[str, Sequence[ProfileProcessor]]) -> None:
        self._chains: Final = {name: tuple(chain) for name, chain in chains.items() if chain}

    def process_request(self, journey: Journey, service: str, instance: str) -> Processed:
        """Run the chain of the journey's profile. `service` and `instance`: the process, for the reports."""
        chain = self._chains.get(journey.profile or "")
        if chain is None:
            return Processed(journey, None)
        reports: list[StageReport] = []
        refusal: Refusal | None = None
        request = RoutedRequest(journey, frozenset())
        for processor in chain:
            request.note = None
            request.declared = frozenset([key.name for key in processor.produces])
            began = time.perf_counter()
            try:
                processor.process_request(request)
            except Refusal as refused:
                refusal = refused
            took_ms = (time.perf_counter() - began) * 1e3
            outcome = "passed" if refusal is None else "rejected"
            note = None if request.note is None else request.note[:NOTE_LIMIT]
            reports.append(
                StageReport(
                    stage=f"{service}/{processor.name}",
                    instance=instance,
                    outcome=outcome,
                    took_ms=round(took_ms, 4),
                    note=note,
                )
            )
            if refusal is not None:
                break
        changes = request.changes()
        changes["trail"] = (*journey.trail, *reports)
        return Processed(journey.changed(**changes), refusal)


@cache
def request_processors() -> Registry[ProfileProcessor]:
    """All request processors of profiles: built-in ones and those of other distributions."""
    return Registry(ProfileProcessor, BUILTIN)


def build_chains(config: Config, place: Place) -> ProfileChains | None:
    """The chains of one place, None where no profile has any. Before a model is chosen the shared processors come
    first, after it the profile's own. Raises ConfigError."""
    uses: dict[str, tuple[PluginUse, ...]] = {"processors": getattr(config.processors, place)}
    for name, profile in config.profiles.items():
        uses[f"profiles.{name}.processors"] = getattr(profile.processors, place)
    if not any(uses.values()):
        return None  # the search for plugins takes milliseconds
    built = {path: _built(config, f"{path}.{place}", each) for path, each in uses.items()}
    shared = built["processors"]
    own = {name: built[f"profiles.{name}.processors"] for name in config.profiles}
    if place == "before_model":
        return ProfileChains({name: (*shared, *each) for name, each in own.items()})
    return ProfileChains({name: (*each, *shared) for name, each in own.items()})


def _built(config: Config, path: str, uses: Sequence[PluginUse]) -> tuple[ProfileProcessor, ...]:
    try:
        made = request_processors().build([use.spec for use in uses])
        for each in made:
            each.check_config(config)
    except PluginError as error:
        raise ConfigError.from_section(path, error) from error
    return tuple(each for each in made if not each.called_by_another)
