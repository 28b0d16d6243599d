"""`single`: one scheduling profile."""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from pointsman_core.plugins import PluginError
from pointsman_scheduler.domain.outcome import Run, Selection
from pointsman_scheduler.domain.points import ProfileHandler
from pointsman_scheduler.domain.request import ScheduleRequest


class Single(ProfileHandler):
    """Runs the only profile and uses its choice."""

    type_name: ClassVar[str] = "single"

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
