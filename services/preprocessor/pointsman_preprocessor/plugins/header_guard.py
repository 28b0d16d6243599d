"""`header-guard`: headers that must not reach an engine or provider."""

import re
from collections.abc import Mapping
from fnmatch import translate
from functools import lru_cache
from typing import cast

from pydantic import Field

from pointsman_core.plugins import Params, Plugin
from pointsman_preprocessor.domain.processing import Incoming, RequestProcessor


class HeaderGuardParams(Params):
    """What goes and what stays."""

    remove: tuple[str, ...] = Field(
        default=("authorization", "cookie", "x-api-key", "api-key", "x-gateway-*", "x-pointsman-*", "x-forwarded-*"),
        min_length=1,
    )
    """Names or patterns (`x-internal-*`), in any case."""
    keep: tuple[str, ...] = ()
    """Exceptions."""


class HeaderGuard(RequestProcessor):
    """Removes them. Processors behind it may set headers of the same names."""

    type_name = "header-guard"
    params_type = HeaderGuardParams

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        parameters = cast("HeaderGuardParams", params)
        remove, keep = _any_of(parameters.remove), _any_of(parameters.keep)

        @lru_cache(maxsize=1024)
        def goes(header: str) -> bool:
            return remove.fullmatch(header) is not None and keep.fullmatch(header) is None

        self._goes = goes

    def process(self, incoming: Incoming) -> None:
        for header in (*incoming.envelope.headers, *incoming.header_edits):
            if self._goes(header):
                incoming.remove_header(header)


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern.lower()) for pattern in patterns) or r"(?!)")
