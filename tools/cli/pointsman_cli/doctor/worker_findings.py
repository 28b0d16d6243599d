"""The findings of `pointsman doctor` about single workers: their load, models, and faults that agents report. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pointsman_cli.doctor.finding import DiagnosisLine, warn
from pointsman_contracts.pool import PoolSnapshot, WorkerView

_UNKNOWN_LOAD: Final = (
    "They serve by the schedulers' own counts. Is the page that names them within reach, with the metrics of the "
    "engine's kind? docs/engines.md has their names; `engine: opaque` is for endpoints without any."
)
_ADVICE: Final = {
    "twin_name": "Give each agent a name of its own (POINTSMAN_WORKER), or none: it is host and port then.",
    "shared_url": "List each process behind it as an engine of its own: a headless Service, or the Pods.",
    "kv_block_size": "Make block_tokens of the pool, and POINTSMAN_KV_BLOCK_TOKENS of its agents, the same multiple of "
    "the engine's block size. Until then its KV events are dropped, and the schedulers' own predictions are used.",
    "load_values": "The figure counts as not reported. Does the engine's version report it in another unit?",
    "models_unknown": "It serves the models that its pool names. A list behind a key is read by an agent that has it "
    "(POINTSMAN_ENGINE_API_KEY).",
    "health_unknown": "It serves. Nothing is known of whether it is ready until its health page answers in time.",
    "wake_failed": "Requests wait for it. vLLM needs --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1; one that slept at "
    "level 2 must load its weights anew. docs/sleeping-engines.md",
}
_WORDS: Final = {
    "twin_name": "two agents have this name",
    "shared_url": "its URL leads to several processes, a balancer perhaps, and none of them is known alone",
    "kv_block_size": "its KV events can't be used",
    "load_values": "it reports an impossible figure",
    "models_unknown": "which models it has is unknown",
    "health_unknown": "whether it is ready is unknown",
    "wake_failed": "it sleeps and can't be woken",
}


def unknown_loads(pool: str, views: Iterable[WorkerView]) -> Iterator[DiagnosisLine]:
    """Workers whose load is unknown, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for view in views:
        # An engine that can't be reached, or doesn't answer, has no load; a fault with the same words is told below.
        told = any(finding.what in view.load_unknown for finding in view.findings)
        if view.load_unknown and not told and view.state in ("serving", "draining"):
            by_reason.setdefault(view.load_unknown, []).append(view.worker)
    for reason, workers in sorted(by_reason.items()):
        yield warn(f"pool {pool}: the load of {', '.join(sorted(workers))} is unknown: {reason}", _UNKNOWN_LOAD)


def reported_faults(pool: str, views: Iterable[WorkerView]) -> Iterator[DiagnosisLine]:
    """Faults that the agents of workers found."""
    for view in views:
        for finding in view.findings:
            if finding.kind == "health_unknown" and view.state not in ("serving", "draining"):
                continue  # the pool's own line names its state, and why
            words = _WORDS.get(finding.kind, finding.kind)
            advice = _ADVICE.get(finding.kind, "A newer doctor knows more of it.")
            yield warn(f"pool {pool}: {view.worker}: {words} ({finding.what})", advice)


_VERDICTS: Final = {
    "ejected": "gets trial requests only, because its answers are worse than its peers'",
    "suspect": "gets trial requests only, because it doesn't answer as fast as predicted",
    "failing": "fails requests",
    "lacking": "gets no requests for a model",
    "unheeded": "gets requests that name another rank, and its own run elsewhere",
}
_READ_THE_LOG: Final = "Read the engine's log. It has its share again once it answers like its peers."
_VERDICT_ADVICE: Final = {
    "unheeded": "Its engine ignores the header x-data-parallel-rank. Name the member of the body that it reads "
    "(POINTSMAN_RANK_FIELD of its agent), or let it be one worker that chooses by itself (POINTSMAN_RANKS=1).",
}


def judged(pool: str, views: Iterable[WorkerView]) -> Iterator[DiagnosisLine]:
    """Workers that schedulers find unwell."""
    for view in views:
        if view.verdict:
            words = _VERDICTS.get(view.verdict, f"is {view.verdict}")
            yield warn(
                f"pool {pool}: {view.worker} {words}: {view.verdict_reason}",
                _VERDICT_ADVICE.get(view.verdict, _READ_THE_LOG),
            )


def other_models(pool: str, models: Sequence[str], views: Iterable[WorkerView]) -> Iterator[DiagnosisLine]:
    """Workers that list none of the models that the pool is configured for."""
    for view in views:
        listed = (*view.models, *view.loras)
        if models and listed and not set(listed) & set(models):
            yield warn(
                f"pool {pool}: {view.worker} lists the models {', '.join(listed)}, and none of the pool's",
                f"It gets no requests for {', '.join(models)}. Was it started with another model?",
            )


def seen_in(pool: str, snapshots: Iterable[PoolSnapshot]) -> list[WorkerView]:
    """The workers of a pool by name, each as one of the metrics-collectors sees it."""
    found = {view.worker: view for snapshot in snapshots if snapshot.pool == pool for view in snapshot.workers}
    return [found[name] for name in sorted(found)]
