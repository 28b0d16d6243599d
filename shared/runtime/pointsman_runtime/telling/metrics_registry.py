"""The metrics of a process: those of its services and its own, as one exposition."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.samples import Sample


class MetricsRegistry(CollectorRegistry):
    """Families of one name are one family; samples of one name and labels are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.own = CollectorRegistry()
        """Metrics of the process rather than of one of its services."""
        self._parts = [self.own]

    def add(self, part: CollectorRegistry) -> None:
        """Show these too."""
        self._parts.append(part)

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        families: dict[str, list[Metric]] = {}
        for part in self._parts:
            for family in part.collect():
                families.setdefault(family.name, []).append(family)
        for alike in families.values():
            yield alike[0] if len(alike) == 1 else _merged(alike)


def _merged(families: Iterable[Metric]) -> Metric:
    first, *others = families
    whole = Metric(first.name, first.documentation, first.type, first.unit)
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], Sample] = {}
    for family in (first, *others):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            known = samples.get(key)
            if known is not None:
                sample = sample._replace(  # noqa: PLW2901 - the sum with those before
                    value=known.value + sample.value, exemplar=sample.exemplar or known.exemplar
                )
            samples[key] = sample
    whole.samples = list(samples.values())
    return whole
