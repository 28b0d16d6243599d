"""`shadow`: other policies decide beside the one in force, and are only recorded."""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final

from pointsman_core.plugins import Params, Plugin, PluginError
from pointsman_scheduler.domain.outcome import Run, Selection
from pointsman_scheduler.domain.points import ProfileHandler, need_profile
from pointsman_scheduler.domain.request import ScheduleRequest


class ShadowParams(Params):
    primary: str = "default"
    """Scheduling profile whose choice is used; all others are shadows."""


class Shadow(ProfileHandler):
    """Runs the primary profile, then all others on the same candidates. Nothing that a shadow does reaches the
    request: it runs later, reserves nothing, and may fail."""

    type_name: ClassVar[str] = "shadow"
    params_type: ClassVar[type[Params]] = ShadowParams

    def __init__(self, name: str, params: ShadowParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._primary: Final = params.primary

    def check(self, profiles: Collection[str]) -> None:
        need_profile(self, self._primary, profiles)
        if len(profiles) < 2:
            raise PluginError(f"profile handler {self.name!r} (shadow) needs a second scheduling profile as the shadow")

    def pick(
        self, request: ScheduleRequest, profiles: Collection[str], results: Mapping[str, Run | None]
    ) -> Sequence[str]:
        if not results:
            return (self._primary,)
        return tuple(profile for profile in profiles if profile not in results)

    def process_results(self, request: ScheduleRequest, results: Mapping[str, Run | None]) -> Selection | None:
        run = results[self._primary]
        return None if run is None else Selection(run)
