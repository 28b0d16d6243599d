"""Choosers of a ranking: how, not what."""

from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import Field

from pointsman_contracts.journey import Journey
from pointsman_core.plugins import Params, Plugin
from pointsman_model_selector.domain.selecting import RankingChooser


class SingleParams(Params):
    """Which ranking."""

    ranking: str | None = None
    """Default: the selector's first."""


class Single(RankingChooser):
    """`single`: every request is ranked alike."""

    type_name = "single"
    params_type = SingleParams

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._ranking = cast("SingleParams", params).ranking

    def named(self) -> Sequence[str]:
        return () if self._ranking is None else (self._ranking,)

    def ranking(self, journey: Journey) -> str | None:
        del journey
        return self._ranking


class ByHeaderParams(Params):
    """A header and what its values mean."""

    header: str = Field(min_length=1)
    rankings: dict[str, str] = Field(min_length=1)
    """Value of the header → ranking."""
    default: str | None = None
    """For requests without the header or with another value; default: the selector's first ranking."""


class ByHeader(RankingChooser):
    """`by-header`: the request says in a header what it cares about, e.g. cost or latency."""

    type_name = "by-header"
    params_type = ByHeaderParams

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._params = cast("ByHeaderParams", params)
        self._header = self._params.header.lower()

    def named(self) -> Sequence[str]:
        default = self._params.default
        return (*self._params.rankings.values(), *(() if default is None else (default,)))

    def ranking(self, journey: Journey) -> str | None:
        value = journey.request.headers.get(self._header)
        return self._params.default if value is None else self._params.rankings.get(value, self._params.default)
