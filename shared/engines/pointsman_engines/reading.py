"""One reading of an engine: its load (`Reading`) and its build (`CacheFacts`)."""

from collections.abc import Iterable
from dataclasses import dataclass

from pointsman_engines.dialect import START_TIME, Dialect, Label, Metric
from pointsman_engines.exposition import Exposition, Sample, UnreadableMetrics


class MissingMetrics(UnreadableMetrics):
    """The answer lacks families that a reading needs."""

    def __init__(self, names: Iterable[bytes]) -> None:
        self.names = tuple(name.decode() for name in names)
        super().__init__(f"no sample of {' or '.join(self.names)}")


@dataclass(frozen=True, slots=True)
class Reading:
    """The load of an engine, all data-parallel ranks together."""

    running: int
    waiting: int
    kv_usage: float = 0.0
    """In [0,1]; 0 when the engine doesn't report it."""
    running_loras: tuple[str, ...] = ()
    waiting_loras: tuple[str, ...] = ()
    max_loras: int = 0
    started_at: float | None = None
    """Unix seconds of the start of the engine's process or of its counters; None when unknown."""
    asleep: bool = False
    """Its weights are away until it is woken."""
    progress: float | None = None
    """A counter that goes back only when the engine restarts."""

    @property
    def busy(self) -> bool:
        """Whether it has any request."""
        return self.running > 0 or self.waiting > 0


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """Facts that change only with a restart."""

    block_tokens: int | None = None
    kv_blocks: int | None = None
    """Sum over all data-parallel ranks."""
    ranks: int = 1
    """Data-parallel ranks."""


def read(dialect: Dialect, exposition: Exposition, before: Reading | None = None) -> Reading:
    """Read the moving signals. `before` is the reading before, needed where a rate stands in for a gauge.

    Raises MissingMetrics without running or waiting requests, UnreadableMetrics on a malformed sample.
    """
    running = round(_sum(dialect, _required(dialect.running, exposition)))
    progress = _progress(dialect, exposition)
    if dialect.running_is_progress:
        progress = float(running)
        running = int(before is not None and before.progress is not None and progress > before.progress)
    waiting = round(_sum(dialect, _required(dialect.waiting, exposition)))
    usage = _mean(dialect, _first(dialect.kv_usage, exposition))
    running_loras, waiting_loras, max_loras = _loras(dialect, exposition)
    return Reading(
        running=max(0, running),
        waiting=max(0, waiting),
        kv_usage=round(min(1.0, max(0.0, usage)), 4),
        running_loras=running_loras,
        waiting_loras=waiting_loras,
        max_loras=max_loras,
        started_at=_started_at(dialect, exposition),
        asleep=_asleep(dialect, exposition),
        progress=progress,
    )


def read_cache(dialect: Dialect, exposition: Exposition) -> CacheFacts:
    """Read what changes only with a restart. Raises UnreadableMetrics on a malformed sample."""
    ranks = len(_by_rank(dialect, _required(dialect.running, exposition))) if dialect.rank else 1
    block_tokens = _built(dialect, dialect.block_tokens, exposition)
    kv_blocks = _built(dialect, dialect.kv_blocks, exposition)
    return CacheFacts(
        block_tokens=max(block_tokens) if block_tokens else None,
        # One info sample for several ranks speaks for each of them.
        kv_blocks=(sum(kv_blocks) if len(kv_blocks) > 1 else kv_blocks[0] * ranks) if kv_blocks else None,
        ranks=ranks,
    )


def _first(alternatives: tuple[Metric, ...], exposition: Exposition) -> list[Sample]:
    for metric in alternatives:
        samples = metric.find(exposition)
        if samples:
            return samples
    return []


def _required(alternatives: tuple[Metric, ...], exposition: Exposition) -> list[Sample]:
    samples = _first(alternatives, exposition)
    if not samples:
        raise MissingMetrics(metric.name for metric in alternatives)
    return samples


def _by_rank(dialect: Dialect, samples: list[Sample]) -> list[float]:
    """One value for each data-parallel rank: the largest of those that its samples have."""
    if len(samples) < 2 or dialect.rank is None:
        return [sample.value for sample in samples]
    ranks: dict[str, float] = {}
    for sample in samples:
        rank = sample.labels().get(dialect.rank, "")
        ranks[rank] = max(sample.value, ranks.get(rank, sample.value))
    return list(ranks.values())


def _sum(dialect: Dialect, samples: list[Sample]) -> float:
    return sum(_by_rank(dialect, samples))


def _mean(dialect: Dialect, samples: list[Sample]) -> float:
    values = _by_rank(dialect, samples)
    return sum(values) / len(values) if values else 0.0


def _progress(dialect: Dialect, exposition: Exposition) -> float | None:
    counter = Metric(dialect.progress + b"_total"), Metric(dialect.progress)
    samples = _first(counter, exposition)
    return sum(sample.value for sample in samples) if samples else None


def _started_at(dialect: Dialect, exposition: Exposition) -> float | None:
    samples = _first((Metric(START_TIME), Metric(dialect.progress + b"_created")), exposition)
    return max(sample.value for sample in samples) if samples else None


def _asleep(dialect: Dialect, exposition: Exposition) -> bool:
    samples = dialect.awake.find(exposition) if dialect.awake else []
    return bool(samples) and all(sample.value == 0 for sample in samples)


def _loras(dialect: Dialect, exposition: Exposition) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    samples = dialect.loras.find(exposition) if dialect.loras else []
    if not samples:
        return (), (), 0
    # vLLM leaves a sample behind for every combination that ever was; the value says when.
    labels = max(samples, key=lambda sample: sample.value).labels()
    return (
        _names(labels.get("running_lora_adapters", "")),
        _names(labels.get("waiting_lora_adapters", "")),
        _whole(labels.get("max_lora", "")) or 0,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))


def _built(dialect: Dialect, alternatives: tuple[Metric | Label, ...], exposition: Exposition) -> list[int]:
    for source in alternatives:
        if isinstance(source, Metric):
            found = [round(value) for value in _by_rank(dialect, source.find(exposition))]
        else:
            # A label can't be summed by the engine: several samples are several ranks.
            texts = (sample.labels().get(source.label, "") for sample in exposition.samples(source.name))
            found = [number for text in texts if (number := _whole(text)) is not None]
        found = [number for number in found if number > 0]
        if found:
            return found
    return []


def _whole(text: str) -> int | None:
    """None for `None`, which vLLM writes for an unknown number."""
    return int(text) if text.isascii() and text.isdecimal() else None
