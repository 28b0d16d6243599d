"""The `rewrites` section: which model serves requests for a name."""

from collections.abc import Iterable
from typing import Annotated, cast

from pydantic import BeforeValidator, Field, PositiveFloat

from pointsman_core.config.section import Section

ANY: str = "*"
"""In a name to match: any text, also none."""


def _names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _shares(value: object) -> object:
    if isinstance(value, str):
        return {value: 1.0}
    if isinstance(value, list | tuple):
        return dict.fromkeys(cast("Iterable[object]", value), 1.0)
    return value


class Rewrite(Section):
    """Requests for a name are served by another model; the answer carries the name that was asked for.

    A name written out goes before patterns, patterns go in the order of the file, and `*` alone comes last. A rewritten
    name isn't rewritten again; a model that must keep its name beside a pattern is rewritten to itself.
    """

    match: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_names)] = Field(min_length=1)
    """Names, or patterns in which `*` stands for any text: `gpt-4o`, `gpt-*`, `*`."""
    to: Annotated[dict[str, PositiveFloat], BeforeValidator(_shares)] = Field(min_length=1)
    """A model (or `auto`, `auto/<group>`), several of equal weight, or `{model: weight}`."""
    sticky: str = Field(default="session", pattern=r"^(request|session|header:[A-Za-z0-9-]+)$")
    """The value that keeps a client on one model while weights stay the same: `session`, `header:<name>`, or `request`
    (each request anew). A request without that value is assigned by its request id."""

    @property
    def label(self) -> str:
        """For notes and metrics."""
        return ",".join(self.match)
