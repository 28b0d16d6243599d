"""Handlers that use the choice of one profile: `single`, `shadow`."""

from collections.abc import Collection, Mapping, Sequence

from pointsman_core.plugins import PluginError
from pointsman_plugins.plugin import Params, ParamsT_co
from pointsman_plugins.scheduling.points import ProfileHandler, need_profile
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run, Selection


class SingleHandler(ProfileHandler[ParamsT_co]):
    """Runs the only profile and uses its choice."""

    type_name = "single"

    def check(self, profiles: Collection[str]) -> None:
        if len(profiles) != 1:
            raise PluginError(
                f"profile handler {self.name!r} (single) works with one scheduling profile; "
                f"there are {len(profiles)}: {', '.join(sorted(profiles))}"
            )

    def pick(
        self, request: ScheduleRequest, profiles: Collection[str], results: Mapping[str, Run | None]
    ) -> Sequence[str]:
        return () if results else tuple(profiles)

    def process_results(self, request: ScheduleRequest, results: Mapping[str, Run | None]) -> Selection | None:
        (run,) = results.values()
        return None if run is None else Selection(run, {}, "", None, [])  # factories would cost as much again


class ShadowParams(Params):
    primary: str = "default"
    """Scheduling profile whose choice is used; all others are shadows."""


class ShadowHandler(ProfileHandler[ShadowParams]):
    """Runs the primary profile, then all others on the same candidates. A shadow doesn't affect the
    request: it runs later, reserves nothing, and may fail."""

    type_name = "shadow"

    def check(self, profiles: Collection[str]) -> None:
        need_profile(self, self.params.primary, profiles)
        if len(profiles) < 2:
            raise PluginError(f"profile handler {self.name!r} (shadow) needs a second scheduling profile as the shadow")

    def pick(
        self, request: ScheduleRequest, profiles: Collection[str], results: Mapping[str, Run | None]
    ) -> Sequence[str]:
        if not results:
            return (self.params.primary,)
        return tuple(profile for profile in profiles if profile not in results)

    def process_results(self, request: ScheduleRequest, results: Mapping[str, Run | None]) -> Selection | None:
        run = results[self.params.primary]
        return None if run is None else Selection(run)
