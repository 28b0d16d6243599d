"""Engines among which an edge may choose alone: all, those of a proxy's subset, or the one that a proxy has chosen."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pointsman_contracts.pool import WorkerView
from pointsman_core.given_worker import given_worker
from pointsman_core.subset import named, place_of, subset_of


class Eligible(NamedTuple):
    """What trusted proxies say about it."""

    worker: str | None = None
    subset: tuple[str, ...] | None = None

    @classmethod
    def by(cls, headers: Mapping[str, str]) -> "Eligible":
        """As the headers of the request say; untrusted ones are gone before."""
        return cls(given_worker(headers), subset_of(headers))

    def of(self, engines: Iterable[WorkerView]) -> list[WorkerView]:
        """Those that may be chosen, before anything else chooses among them."""
        left = [view for view in engines if self.worker in (None, view.worker)]
        if self.subset is None:
            return left
        keep = named([place_of(view.url) for view in left], self.subset)
        return [view for view, kept in zip(left, keep, strict=True) if kept]
