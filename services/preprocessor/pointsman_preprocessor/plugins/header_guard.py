"""`header-guard`: removes headers that must not reach an engine or provider."""

import re
from fnmatch import translate
from functools import lru_cache

from pydantic import Field, field_validator

from pointsman_core.header_names import EDGES_OWN, settable
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import Incoming, RequestProcessor


class HeaderGuardParams(Params):
    """The headers to remove, and exceptions."""

    remove: tuple[str, ...] = Field(
        default=("authorization", "cookie", "x-api-key", "api-key", "x-gateway-*", "x-pointsman-*", "x-forwarded-*"),
        min_length=1,
    )
    """Names or patterns (`x-internal-*`), in any case."""
    keep: tuple[str, ...] = ()
    """Exceptions."""

    @field_validator("remove")
    @classmethod
    def _can_be_removed(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(settable(name) for name in value)


class HeaderGuard(RequestProcessor[HeaderGuardParams]):
    """Removes them. Later processors may set headers of the same names."""

    type_name = "header-guard"

    def setup(self) -> None:
        remove, keep = _any_of(self.params.remove), _any_of(self.params.keep)

        @lru_cache(maxsize=1024)
        def goes(header: str) -> bool:
            # A pattern may also match headers that the edge writes; these stay.
            return header not in EDGES_OWN and bool(remove.fullmatch(header)) and not keep.fullmatch(header)

        self._goes = goes

    def process(self, incoming: Incoming) -> None:
        for header in (*incoming.envelope.headers, *incoming.header_edits):
            if self._goes(header):
                incoming.remove_header(header)


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern.lower()) for pattern in patterns) or r"(?!)")
