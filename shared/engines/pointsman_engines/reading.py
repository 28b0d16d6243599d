"""One reading of an engine: its identity (`EngineIdentity`), its load (`Reading`) and its build (`CacheFacts`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pointsman_engines.dialect import START_TIME, Dialect, Label, Metric
from pointsman_engines.exposition import Exposition, Sample, UnreadableMetrics


class MissingMetrics(UnreadableMetrics):
    """The answer lacks families that a reading needs."""

    def __init__(self, names: Iterable[bytes]) -> None:
        self.names = tuple(name.decode() for name in names)
        super().__init__(f"no sample of {' or '.join(self.names)}")


MOST_REQUESTS: Final = 1_000_000
"""Requests that one engine may claim to have."""
MOST_WORK: Final = float(2**63)
"""Tokens that its counters may claim."""
KV_SLACK: Final = 0.02
"""A rounding error of the KV usage outside [0,1]."""


class ImplausibleMetrics(UnreadableMetrics):
    """A figure can't be true, so nothing is known of the load."""


class EngineIdentity(NamedTuple):
    """The process that answered."""

    started_at: float | None = None
    """Unix seconds of the start of the engine's process or of its counters; None when unknown."""
    progress: float | None = None
    """A counter that goes back only when the engine restarts."""


UNKNOWN_ENGINE: Final = EngineIdentity()


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
    asleep: bool = False
    """Its weights are away until it is woken."""
    discarded: bool = False
    """They are lost: an engine that is woken answers with noise."""
    identity: EngineIdentity = UNKNOWN_ENGINE
    worked: int | None = None
    """Counters that move with each step, added up; None when the engine doesn't report all of them."""
    doubt: str = ""
    """A figure that can't be true and is taken as not reported, in words; empty when there is none."""
    by_rank: Mapping[str, "Reading"] | None = None
    """The load of each data-parallel rank, by the value of its label; None where the metrics told of one or
    none."""

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
    rank_labels: tuple[str, ...] = ()
    """Their labels in the metrics, in the order of their numbers; empty where the metrics tell of one or none."""

    def of_one_rank(self, ranks: int) -> "CacheFacts":
        """The cache of one of so many ranks."""
        blocks = self.kv_blocks
        return replace(self, kv_blocks=None if blocks is None else -(-blocks // ranks), ranks=1, rank_labels=())


def identity(dialect: Dialect, exposition: Exposition) -> EngineIdentity:
    """The process that answered, also where its load can't be read. Raises UnreadableMetrics on a malformed sample."""
    counters = dialect.running if dialect.running_is_progress else _counter(dialect.progress)
    samples = _first(counters, exposition)
    return EngineIdentity(
        _started_at(dialect, exposition), sum(sample.value for sample in samples) if samples else None
    )


def read(dialect: Dialect, exposition: Exposition, before: Reading | None = None) -> Reading:
    """Read the moving signals. `before` is the reading before, needed where a rate stands in for a gauge, and where a
    rank is left out that was told before.

    Raises MissingMetrics without running or waiting requests, ImplausibleMetrics when one of them can't be true,
    UnreadableMetrics on a malformed sample.
    """
    who = identity(dialect, exposition)
    if dialect.running_is_progress:
        if who.progress is None:
            raise MissingMetrics(metric.name for metric in dialect.running)
        known = before.identity.progress if before is not None else None
        running = int(known is not None and who.progress > known)
    else:
        running = _requests(dialect, dialect.running, exposition)
    waiting = _requests(dialect, dialect.waiting, exposition)
    usage, doubt = _kv_usage(dialect, exposition)
    running_loras, waiting_loras, max_loras = _loras(dialect, exposition)
    return Reading(
        running=running,
        waiting=waiting,
        kv_usage=usage,
        running_loras=running_loras,
        waiting_loras=waiting_loras,
        max_loras=max_loras,
        asleep=_asleep(dialect, exposition),
        discarded=any(s.value > 0 for s in dialect.discarded.finite_samples(exposition))
        if dialect.discarded
        else False,
        identity=who,
        worked=_worked(dialect, exposition),
        doubt=doubt,
        by_rank=_by_label(dialect, exposition, who, 1 if before is not None and before.by_rank is not None else 2),
    )


def _by_label(dialect: Dialect, exposition: Exposition, who: EngineIdentity, least: int) -> dict[str, Reading] | None:
    """The load of each rank; None of fewer than `least`. A rank that lacks one of the figures is left out: its load
    isn't known."""
    if dialect.rank is None or len(_first(dialect.running, exposition)) < least:
        return None
    running = _values_by_label(dialect, dialect.running, exposition)
    if len(running) < least:
        return None
    waiting = _values_by_label(dialect, dialect.waiting, exposition)
    usage = _values_by_label(dialect, dialect.kv_usage, exposition)
    worked = [_values_by_label(dialect, _counter(counter), exposition) for counter in dialect.worked]
    loras = _samples_by_label(dialect, dialect.loras.finite_samples(exposition) if dialect.loras else ())
    awake = _values_by_label(dialect, (dialect.awake,) if dialect.awake else (), exposition)
    found: dict[str, Reading] = {}
    for label in sorted(running, key=_number):
        if label not in waiting:
            continue
        named = _adapters(loras.get(label, loras.get("", [])))
        steps = sum(counter.get(label, MOST_WORK) for counter in worked)
        found[label] = Reading(
            running=round(running[label]),
            waiting=round(waiting[label]),
            kv_usage=_within(usage.get(label, 0.0)),
            running_loras=named[0],
            waiting_loras=named[1],
            max_loras=named[2],
            asleep=awake.get(label, 1.0) == 0,
            identity=who,
            worked=int(steps) if worked and 0 <= steps < MOST_WORK else None,
        )
    return found


def _samples_by_label(dialect: Dialect, samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    if dialect.rank is not None:
        for sample in samples:
            found.setdefault(sample.labels().get(dialect.rank, ""), []).append(sample)
    return found


def _values_by_label(dialect: Dialect, alternatives: tuple[Metric, ...], exposition: Exposition) -> dict[str, float]:
    """The largest value that each rank has, as `_by_rank`; samples without a rank don't count."""
    samples = _samples_by_label(dialect, _first(alternatives, exposition))
    return {label: max(sample.value for sample in these) for label, these in samples.items() if label}


def _number(label: str) -> tuple[int, str]:
    """Orders labels by number."""
    return (int(label), label) if label.isascii() and label.isdecimal() else (2**31, label)


def _within(usage: float) -> float:
    """A part in [0,1]; 0 for what can't be true, as `_kv_usage` says."""
    return round(min(1.0, max(0.0, usage)), 4) if -KV_SLACK <= usage <= 1 + KV_SLACK else 0.0


def read_cache(dialect: Dialect, exposition: Exposition) -> CacheFacts:
    """Read what changes only with a restart. Raises UnreadableMetrics on a malformed sample."""
    labels = sorted(_values_by_label(dialect, dialect.running, exposition), key=_number)
    ranks = len(_by_rank(dialect, _first(dialect.running, exposition))) or 1 if dialect.rank else 1
    block_tokens = _built(dialect, dialect.block_tokens, exposition)
    kv_blocks = _built(dialect, dialect.kv_blocks, exposition)
    return CacheFacts(
        block_tokens=max(block_tokens) if block_tokens else None,
        # One info sample for several ranks speaks for each of them.
        kv_blocks=(sum(kv_blocks) if len(kv_blocks) > 1 else kv_blocks[0] * ranks) if kv_blocks else None,
        ranks=ranks,
        rank_labels=tuple(labels) if len(labels) > 1 else (),
    )


def _first(alternatives: tuple[Metric, ...], exposition: Exposition) -> list[Sample]:
    for metric in alternatives:
        samples = metric.finite_samples(exposition)
        if samples:
            return samples
    return []


def _requests(dialect: Dialect, alternatives: tuple[Metric, ...], exposition: Exposition) -> int:
    for metric in alternatives:
        samples = metric.all_samples(exposition)
        for sample in samples:
            if not 0 <= sample.value <= MOST_REQUESTS:
                raise ImplausibleMetrics(f"{metric.name.decode()} is {sample.value:g}")
        if samples:
            # Each rank's figure is bounded, so that their sum is.
            return round(sum(_by_rank(dialect, samples)))
    raise MissingMetrics(metric.name for metric in alternatives)


def _by_rank(dialect: Dialect, samples: list[Sample]) -> list[float]:
    """One value for each data-parallel rank: the largest of those that its samples have."""
    if len(samples) < 2 or dialect.rank is None:
        return [sample.value for sample in samples]
    ranks: dict[str, float] = {}
    for sample in samples:
        rank = sample.labels().get(dialect.rank, "")
        ranks[rank] = max(sample.value, ranks.get(rank, sample.value))
    return list(ranks.values())


def _kv_usage(dialect: Dialect, exposition: Exposition) -> tuple[float, str]:
    """The mean over all ranks, and the doubt about it; 0 where it isn't reported, or can't be true."""
    for metric in dialect.kv_usage:
        samples = metric.all_samples(exposition)
        for sample in samples:
            if not -KV_SLACK <= sample.value <= 1 + KV_SLACK:
                return 0.0, f"{metric.name.decode()} is {sample.value:g}, not a part in [0,1]"
        if samples:
            values = _by_rank(dialect, samples)
            return round(min(1.0, max(0.0, sum(values) / len(values))), 4), ""
    return 0.0, ""


def _worked(dialect: Dialect, exposition: Exposition) -> int | None:
    found = [_first(_counter(counter), exposition) for counter in dialect.worked]
    if not found or not all(found):
        return None  # without one of them, the others may stand while the engine works
    total = sum(sample.value for samples in found for sample in samples)
    return int(total) if 0 <= total < MOST_WORK else None


def _counter(name: bytes) -> tuple[Metric, ...]:
    return Metric(name + b"_total"), Metric(name)


def _started_at(dialect: Dialect, exposition: Exposition) -> float | None:
    samples = _first((Metric(START_TIME), Metric(dialect.progress + b"_created")), exposition)
    return max(sample.value for sample in samples) if samples else None


def _asleep(dialect: Dialect, exposition: Exposition) -> bool:
    samples = dialect.awake.finite_samples(exposition) if dialect.awake else []
    return bool(samples) and all(sample.value == 0 for sample in samples)


def _loras(dialect: Dialect, exposition: Exposition) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    return _adapters(dialect.loras.finite_samples(exposition) if dialect.loras else [])


def _adapters(samples: list[Sample]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
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
            found = [round(value) for value in _by_rank(dialect, source.finite_samples(exposition))]
        else:
            # A label can't be summed by the engine: several samples are several ranks.
            texts = (sample.labels().get(source.label, "") for sample in exposition.find_samples(source.name))
            found = [number for text in texts if (number := _whole(text)) is not None]
        found = [number for number in found if 0 < number < MOST_WORK]
        if found:
            return found
    return []


def _whole(text: str) -> int | None:
    """None for `None`, which vLLM writes for an unknown number."""
    return int(text) if text.isascii() and text.isdecimal() else None
