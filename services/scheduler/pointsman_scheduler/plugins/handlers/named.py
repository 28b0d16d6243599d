"""`header-named`: a request header names the scheduling profile."""

from collections.abc import Collection, Mapping, Sequence

from pointsman_core.plugins import unknown
from pointsman_core.refusal import Refusal
from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.points import ProfileHandler, need_profile
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run, Selection


class HeaderNamedParams(Params):
    header: str = "epp-profile"
    """Name of the header."""
    default: str
    """Scheduling profile of requests without the header, or with a blank one."""


class HeaderNamed(ProfileHandler[HeaderNamedParams]):
    """Runs the profile that the header names; rejects an unknown one with 400."""

    type_name = "header-named"

    def setup(self) -> None:
        self._header = self.params.header.lower()
        self.reads_headers = (self._header,)

    def check(self, profiles: Collection[str]) -> None:
        need_profile(self, self.params.default, profiles)

    def pick(
        self, request: ScheduleRequest, profiles: Collection[str], results: Mapping[str, Run | None]
    ) -> Sequence[str]:
        if results:
            return ()
        name = request.facts.headers.get(self._header, "").strip() or self.params.default
        if name not in profiles:
            raise Refusal(
                400,
                f"Header {self._header!r}: {unknown('scheduling profile', name, profiles)}.",
                code="unknown_scheduling_profile",
                param=self._header,
            )
        return (name,)

    def process_results(self, request: ScheduleRequest, results: Mapping[str, Run | None]) -> Selection | None:
        (run,) = results.values()
        return None if run is None else Selection(run)
