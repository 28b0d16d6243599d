"""`header-named`: a request header names the scheduling profile."""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Final

from pointsman_core.plugins import Params, Plugin, unknown
from pointsman_core.refusal import Refusal
from pointsman_scheduler.domain.outcome import Run, Selection
from pointsman_scheduler.domain.points import ProfileHandler, need_profile
from pointsman_scheduler.domain.request import ScheduleRequest


class HeaderNamedParams(Params):
    header: str = "epp-profile"
    """Name of the header."""
    default: str
    """Scheduling profile of requests without the header."""


class HeaderNamed(ProfileHandler):
    """Runs the profile that the header names; 400 for one that doesn't exist."""

    type_name: ClassVar[str] = "header-named"
    params_type: ClassVar[type[Params]] = HeaderNamedParams

    def __init__(self, name: str, params: HeaderNamedParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._header: Final = params.header.lower()
        self._default: Final = params.default

    def check(self, profiles: Collection[str]) -> None:
        need_profile(self, self._default, profiles)

    def pick(
        self, request: ScheduleRequest, profiles: Collection[str], results: Mapping[str, Run | None]
    ) -> Sequence[str]:
        if results:
            return ()
        name = request.headers.get(self._header, self._default).strip()
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
