"""Choosers of a ranking. They change how models are ranked, never the request."""

from collections.abc import Sequence

from pydantic import Field

from pointsman_contracts.journey import Journey
from pointsman_plugins.plugin import Params
from pointsman_plugins.selecting import RankingChooser


class OneRankingParams(Params):
    """The ranking."""

    ranking: str | None = None
    """Default: the selector's first."""


class OneRanking(RankingChooser[OneRankingParams]):
    """`single`: every request is ranked alike."""

    type_name = "single"

    def named(self) -> Sequence[str]:
        return () if self.params.ranking is None else (self.params.ranking,)

    def ranking(self, journey: Journey) -> str | None:
        del journey
        return self.params.ranking


class ByHeaderParams(Params):
    """A header, and the ranking for each of its values."""

    header: str = Field(min_length=1)
    rankings: dict[str, str] = Field(min_length=1)
    """Value of the header → ranking."""
    default: str | None = None
    """For requests without the header or with another value; default: the selector's first ranking."""


class ByHeader(RankingChooser[ByHeaderParams]):
    """`by-header`: a header of the request names its ranking, e.g. by cost or by latency."""

    type_name = "by-header"

    def setup(self) -> None:
        self._header = self.params.header.lower()

    def named(self) -> Sequence[str]:
        default = self.params.default
        return (*self.params.rankings.values(), *(() if default is None else (default,)))

    def ranking(self, journey: Journey) -> str | None:
        value = journey.request.headers.get(self._header)
        return self.params.default if value is None else self.params.rankings.get(value, self.params.default)
