"""Tests the signals of an engine: health, models and metrics."""

import time
from typing import Final

from pointsman_engines.client import EngineFailed, PageUnread
from pointsman_engines.dialect import START_TIME, Dialect, Metric
from pointsman_engines.exposition import Exposition
from pointsman_engines.models import ServedModels, UnreadableModels, served_models
from pointsman_engines.probes.probed_engine import CHAT, MOVES_S, Different, FeatureMissing, ProbedEngine, Wanted
from pointsman_engines.reading import MissingMetrics, read, read_cache

FREED_S: Final = 0.25
"""Seconds until a client that hangs up has freed its share of the engine."""


async def health(engine: ProbedEngine) -> str:
    """A path that answers while all is well."""
    for path in ("/health", "/v2/health/ready"):
        try:
            answer = await engine.get(path)
        except FeatureMissing:
            continue
        if answer.status != 200:
            raise Different(f"{path} answers HTTP {answer.status}")
        return path
    raise FeatureMissing("neither /health nor /v2/health/ready")


async def version(engine: ProbedEngine) -> str:
    return await version_of(engine)


async def version_of(engine: ProbedEngine) -> str:
    """Its version. Raises FeatureMissing."""
    found = await engine.client.version(timeout=10)
    if not found:
        raise FeatureMissing("no /version")
    return found


async def models(engine: ProbedEngine) -> str:
    """`/v1/models`."""
    return ", ".join((await _served(engine)).models)


async def context(engine: ProbedEngine) -> str:
    """The longest sequence, in `/v1/models`."""
    longest = (await _served(engine)).max_context
    if longest is None:
        raise FeatureMissing("no max_model_len in /v1/models")
    return f"{longest} tokens"


async def running(engine: ProbedEngine) -> str:
    """A gauge that counts a request while it is served, and no longer."""
    dialect, metric = await _metric(engine, _dialect(engine).running, "gauge")
    if dialect.running_is_progress:
        return "a counter of executions stands for it"
    before = await engine.read_metric(metric) or 0.0
    async with engine.keep_busy():
        if await engine.wait_until_metric(metric, Wanted(above=before)) is None:
            raise Different(f"{metric.name.decode()} doesn't rise with a request")
    if await engine.wait_until_metric(metric, Wanted(at_most=before)) is None:
        raise Different(f"{metric.name.decode()} doesn't fall when a request is over")
    return metric.name.decode()


async def waiting(engine: ProbedEngine) -> str:
    """A gauge."""
    _, metric = await _metric(engine, _dialect(engine).waiting, "gauge")
    return metric.name.decode()


async def kv_usage(engine: ProbedEngine) -> str:
    """A gauge in [0,1] that rises while a request is served."""
    _, metric = await _metric(engine, _dialect(engine).kv_usage, "gauge")
    before = await engine.read_metric(metric) or 0.0
    async with engine.keep_busy():
        if await engine.wait_until_metric(metric, Wanted(above=before)) is None:
            raise Different(f"{metric.name.decode()} doesn't rise with a request")
        if (await engine.read_metric(metric) or 0.0) > 1:
            raise Different(f"{metric.name.decode()} is above 1")
    return metric.name.decode()


async def kv_size(engine: ProbedEngine) -> str:
    """Block size and number of blocks."""
    facts = read_cache(_dialect(engine), await engine.read_exposition())
    if facts.block_tokens is None or facts.kv_blocks is None:
        raise FeatureMissing("no block size or no number of blocks")
    return f"{facts.kv_blocks} blocks of {facts.block_tokens} tokens"


async def progress(engine: ProbedEngine) -> str:
    """A counter that every request moves."""
    dialect = _dialect(engine)
    found = (Metric(dialect.progress + b"_total"), Metric(dialect.progress))
    _, metric = await _metric(engine, found, "counter")
    before = await engine.read_metric(metric) or 0.0
    await engine.post_request(
        CHAT, {"messages": [{"role": "user", "content": f"Train {time.time_ns()}?"}], "max_tokens": 2}
    )
    if await engine.wait_until_metric(metric, Wanted(above=before)) is None:
        raise Different(f"{metric.name.decode()} doesn't rise with a request")
    return metric.name.decode()


async def started(engine: ProbedEngine) -> str:
    """When the process started, in the past."""
    _dialect(engine)
    at = await engine.read_metric(Metric(START_TIME))
    if at is None:
        raise FeatureMissing("a new life is known by a refused connection or a counter that went back")
    if not 0 < at <= time.time() + 1:
        raise Different("it isn't in the past, or not in seconds")
    return START_TIME.decode()


async def loras(engine: ProbedEngine) -> str:
    """Which adapters are in use."""
    reading = read(_dialect(engine), await engine.read_exposition())
    if not reading.max_loras:
        raise FeatureMissing("no adapters, or none used yet")
    return f"{reading.max_loras} at once"


async def sleep(engine: ProbedEngine) -> str:
    """Whether the engine reports that it sleeps."""
    metric = _dialect(engine).awake
    if metric is None or await engine.read_metric(metric) is None:
        raise FeatureMissing("an engine that sleeps seems idle")
    return metric.name.decode()


async def selected(engine: ProbedEngine) -> str:
    """Some metrics without the others."""
    dialect = _dialect(engine)
    whole = await engine.client.metrics(timeout=10)
    some = await engine.client.metrics(dialect.moving_families, timeout=10)
    if len(some) * 2 > len(whole):
        raise FeatureMissing(f"each reading has all {len(whole)} bytes")
    try:
        read(dialect, Exposition(some))
    except MissingMetrics as error:
        raise Different(f"without {', '.join(error.names)}") from None
    return f"{len(some)} bytes rather than {len(whole)}"


async def hang_up(engine: ProbedEngine) -> str:
    """A client that hangs up leaves nothing running."""
    _, metric = await _metric(engine, _dialect(engine).running, "gauge")
    before = await engine.read_metric(metric) or 0.0
    async with engine.keep_busy():
        if await engine.wait_until_metric(metric, Wanted(above=before)) is None:
            raise Different("nothing seems to run")
    took = await engine.wait_until_metric(metric, Wanted(at_most=before))
    if took is None:
        raise Different(f"still running {MOVES_S:g} s later")
    if took > FREED_S:
        raise Different(f"only after {took * 1000:.0f} ms")
    return f"{took * 1000:.0f} ms"


async def _served(engine: ProbedEngine) -> ServedModels:
    try:
        return served_models(await engine.client.models(timeout=10))
    except EngineFailed as error:
        raise FeatureMissing(str(error)) from None
    except (PageUnread, UnreadableModels) as error:
        raise Different(str(error)) from None


def _dialect(engine: ProbedEngine) -> Dialect:
    if engine.dialect is None:
        raise FeatureMissing("no metrics of a kind that is known")
    return engine.dialect


async def _metric(engine: ProbedEngine, names: tuple[Metric, ...], kind: str) -> tuple[Dialect, Metric]:
    """The first of these metrics that the engine has; its type must match where the text has one."""
    exposition = await engine.read_exposition()
    for metric in names:
        if metric.finite_samples(exposition):
            told = exposition.kind_of(metric.name)
            if told not in (None, kind):
                raise Different(f"{metric.name.decode()} is a {told}")
            return _dialect(engine), metric
    raise FeatureMissing(f"no {' or '.join(metric.name.decode() for metric in names) or 'such metric'}")
