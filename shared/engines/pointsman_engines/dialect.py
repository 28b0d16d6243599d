"""The metric names of each engine.

Names: the engines' own documentation, collected in the table of the endpoint picker's core metrics
(https://gateway-api-inference-extension.sigs.k8s.io/guides/metrics-and-observability/, llm-d
`docs/plugin-metric-protocol.md`); those of llama.cpp from its server's README (`--metrics`).
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from pointsman_engines.exposition import Exposition, Sample


class Metric(NamedTuple):
    """A family, or those of its samples that carry one label value."""

    name: bytes
    label: str = ""
    value: str = ""

    def all_samples(self, exposition: Exposition) -> list[Sample]:
        samples = exposition.find_samples(self.name)
        if not self.label:
            return samples
        return [sample for sample in samples if sample.labels().get(self.label) == self.value]

    def finite_samples(self, exposition: Exposition) -> list[Sample]:
        """Its finite samples: engines report infinite values and NaN for unknown ones."""
        return [sample for sample in self.all_samples(exposition) if math.isfinite(sample.value)]


class Label(NamedTuple):
    """A number that an engine writes into a label of an info family."""

    name: bytes
    label: str


@dataclass(frozen=True)
class Dialect:
    """The metric names of one kind of engine. Alternatives stand in order of preference."""

    engine: str
    """As in `WorkerRegistration.engine`."""
    running: tuple[Metric, ...]
    """Sequences in the running batch."""
    waiting: tuple[Metric, ...]
    """Requests queued."""
    kv_usage: tuple[Metric, ...] = ()
    """Used part of the KV cache in [0,1]."""
    loras: Metric | None = None
    """vLLM's info family: adapters in labels, the time of the reading as value."""
    block_tokens: tuple[Metric | Label, ...] = ()
    kv_blocks: tuple[Metric | Label, ...] = ()
    rank: str | None = None
    """Label of data-parallel ranks. Samples of one rank (tensor-parallel twins) are equal; ranks add up. None: every
    sample is a part of its own."""
    progress: bytes = b""
    """A counter that every request moves, without `_total`. It goes back only when the engine restarts."""
    worked: tuple[bytes, ...] = ()
    """Counters that together move with each step of the engine, not only when a request ends; without `_total`."""
    awake: Metric | None = None
    """1 while the engine serves; 0 while its weights are away: it accepts requests then and answers none."""
    discarded: Metric | None = None
    """1 while its weights are away for good: woken, it answers with noise until they are loaded again."""
    running_is_progress: bool = False
    """The engine has no gauge of running requests: `running` is a counter of executions, and a rise between two
    readings stands for one execution under way."""

    @cached_property
    def moving_families(self) -> tuple[bytes, ...]:
        """Names of all families that a reading looks for, so that an engine can be asked for these alone."""
        lone = [metric for metric in (self.loras, self.awake) if metric is not None]
        metrics = [*self.running, *self.waiting, *self.kv_usage, *lone]
        counters = [counter + end for counter in (self.progress, *self.worked) for end in (b"_total", b"")]
        names = [*(metric.name for metric in metrics), *counters, self.progress + b"_created"]
        return tuple(dict.fromkeys((*names, START_TIME)))


START_TIME: Final = b"process_start_time_seconds"

_TRT_BLOCKS: Final = b"nv_trt_llm_kv_cache_block_metrics"
_TRT_REQUESTS: Final = b"nv_trt_llm_request_metrics"

DIALECTS: Final[tuple[tuple[bytes, Dialect], ...]] = (
    (
        b"vllm:",
        Dialect(
            engine="vllm",
            running=(Metric(b"vllm:num_requests_running"),),
            waiting=(Metric(b"vllm:num_requests_waiting"),),
            # The second name is that of vLLM before 0.10.
            kv_usage=(Metric(b"vllm:kv_cache_usage_perc"), Metric(b"vllm:gpu_cache_usage_perc")),
            loras=Metric(b"vllm:lora_requests_info"),
            block_tokens=(Label(b"vllm:cache_config_info", "block_size"),),
            kv_blocks=(Label(b"vllm:cache_config_info", "num_gpu_blocks"),),
            rank="engine",
            progress=b"vllm:prompt_tokens",
            worked=(b"vllm:prompt_tokens", b"vllm:generation_tokens"),
            awake=Metric(b"vllm:engine_sleep_state", "sleep_state", "awake"),
            discarded=Metric(b"vllm:engine_sleep_state", "sleep_state", "discard_all"),
        ),
    ),
    (
        b"sglang:",
        Dialect(
            engine="sglang",
            running=(Metric(b"sglang:num_running_reqs"),),
            waiting=(Metric(b"sglang:num_queue_reqs"),),
            kv_usage=(Metric(b"sglang:token_usage"),),
            # Gauges since 0.5.11, labels of an info family before.
            block_tokens=(Metric(b"sglang:page_size"), Label(b"sglang:cache_config_info", "page_size")),
            kv_blocks=(Metric(b"sglang:num_pages"), Label(b"sglang:cache_config_info", "num_pages")),
            rank="dp_rank",
            progress=b"sglang:prompt_tokens",
            # Its other counters of tokens move when a request ends. Older servers have none that moves before.
            worked=(b"sglang:realtime_tokens",),
        ),
    ),
    (
        b"trtllm_",
        Dialect(
            engine="trtllm",
            running=(Metric(b"trtllm_num_requests_running"),),
            waiting=(Metric(b"trtllm_num_requests_waiting"),),
            kv_usage=(Metric(b"trtllm_kv_cache_utilization"),),
            block_tokens=(Metric(b"trtllm_kv_cache_tokens_per_block"),),
            kv_blocks=(Metric(b"trtllm_kv_cache_max_blocks"),),
            progress=b"trtllm_request_success",
        ),
    ),
    (
        b"llamacpp:",
        Dialect(
            engine="llamacpp",
            running=(Metric(b"llamacpp:requests_processing"),),
            waiting=(Metric(b"llamacpp:requests_deferred"),),
            # Only older servers report it.
            kv_usage=(Metric(b"llamacpp:kv_cache_usage_ratio"),),
            progress=b"llamacpp:prompt_tokens",
            # Its counters of tokens move when a prompt, or an answer, is complete.
            worked=(b"llamacpp:n_decode",),
        ),
    ),
    (
        b"nv_trt_llm_",
        Dialect(
            engine="triton",
            running=(Metric(_TRT_REQUESTS, "request_type", "scheduled"),),
            waiting=(Metric(_TRT_REQUESTS, "request_type", "waiting"),),
            kv_usage=(Metric(_TRT_BLOCKS, "kv_cache_block_type", "fraction"),),
            block_tokens=(Metric(_TRT_BLOCKS, "kv_cache_block_type", "tokens_per"),),
            kv_blocks=(Metric(_TRT_BLOCKS, "kv_cache_block_type", "max"),),
            progress=b"nv_inference_request_success",
        ),
    ),
    (
        b"nv_inference_",
        Dialect(
            engine="triton",
            running=(Metric(b"nv_inference_exec_count"),),
            waiting=(Metric(b"nv_inference_pending_request_count"),),
            progress=b"nv_inference_request_success",
            running_is_progress=True,
        ),
    ),
)
"""Prefix of the names → dialect, the more specific first: Triton with the TensorRT-LLM backend has `nv_inference_`
families as well."""

ENGINES: Final = tuple(dict.fromkeys(dialect.engine for _, dialect in DIALECTS))
"""Every kind of engine whose metrics can be read."""
AUTO: Final = "auto"
"""Find the kind from the names of the metrics."""


def detect(exposition: Exposition, engine: str | None = None) -> Dialect | None:
    """The dialect of these names; `engine` narrows the choice. None when the dialect is unknown."""
    for prefix, dialect in DIALECTS:
        if engine in (None, dialect.engine) and exposition.has_prefix(prefix):
            return dialect
    return None
