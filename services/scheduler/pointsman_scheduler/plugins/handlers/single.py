"""`single`: one scheduling profile."""

from collections.abc import Collection, Mapping, Sequence

from pointsman_core.plugins import PluginError
from pointsman_plugins.plugin import ParamsT_co
from pointsman_plugins.scheduling.points import ProfileHandler
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
