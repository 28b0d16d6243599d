"""The engine's Prometheus metrics, under vLLM's names."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman_simulator.engine import EngineModel, PassResult
from pointsman_simulator.sleep_mode import LEVELS, SleepMode

_TTFT_BUCKETS: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
_TTFT_BUCKETS_LONG: Final = (10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_ITL_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_E2E_BUCKETS: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 480.0)

_LABELS: Final = ("model_name", "engine")
_CACHE_LABELS: Final = ("block_size", "num_gpu_blocks", "enable_prefix_caching", "engine")


class SimulatedMetrics(Collector):
    """Reads the engine when scraped; only the histograms are fed as passes end. Times are wall seconds.

    Metrics of requests carry their base model's name. The batch and the cache are shared by all models, and carry the
    first name, as in vLLM with several served names: readers take samples of one engine for twins.
    """

    def __init__(self, ranks: Sequence[EngineModel], models: tuple[str, ...], sleep: SleepMode) -> None:
        self._sleep = sleep
        self.hidden: frozenset[int] = frozenset()
        """Ranks that are left out of what is read from the engine."""
        self.idle: frozenset[int] = frozenset()
        """Ranks that are said to have no requests."""
        self._ranks = ranks
        self._models = models
        self._finished = {
            (rank, model, reason): 0 for rank in range(len(ranks)) for model in models for reason in ("stop", "length")
        }
        self._registry = CollectorRegistry(auto_describe=True)
        self._registry.register(self)
        # As in vLLM: the start time of the process distinguishes the lives of the engine.
        ProcessCollector(registry=self._registry)
        self._ttft = self._histogram("time_to_first_token", (*_TTFT_BUCKETS, *_TTFT_BUCKETS_LONG))
        self._itl = self._histogram("inter_token_latency", _ITL_BUCKETS)
        self._e2e = self._histogram("e2e_request_latency", _E2E_BUCKETS)
        self._queue = self._histogram("request_queue_time", _E2E_BUCKETS)

    def render_text(self, names: Sequence[str] = ()) -> bytes:
        """All families, or the samples of these names. Of the others nothing is written: an agent asks twenty times a
        second, and no pass ends meanwhile."""
        if not names:
            return generate_latest(self._registry)
        text = generate_latest(self._registry.restricted_registry(names))
        wanted = tuple(f"{name}{end}".encode() for name in names for end in ("{", " "))
        return b"".join(line for line in text.splitlines(keepends=True) if line.startswith(wanted))

    def observe_pass(self, rank: int, result: PassResult) -> None:
        for sequence in result.emitted:
            if sequence.generated == 1:
                key = rank, sequence.model
                self._ttft[key].observe(max(0.0, result.ended_at - sequence.arrived_at) / 1000)
                self._queue[key].observe(max(0.0, sequence.scheduled_at - sequence.arrived_at) / 1000)
        for sequence in result.finished:
            key = rank, sequence.model
            self._e2e[key].observe(max(0.0, result.ended_at - sequence.arrived_at) / 1000)
            if sequence.generated > 1:
                decoded_ms = sequence.finished_at - sequence.first_token_at
                self._itl[key].observe(decoded_ms / (sequence.generated - 1) / 1000)

    def count_finished(self, rank: int, model: str, reason: str) -> None:
        self._finished[rank, model, reason] += 1

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", lambda rank: len(rank.running), "Requests in the running batch.")
        yield self._gauge("num_requests_waiting", lambda rank: len(rank.waiting), "Requests waiting to be scheduled.")
        yield self._gauge("kv_cache_usage_perc", lambda rank: rank.kv_usage, "KV-cache usage; 1 is full.")
        sleep = GaugeMetricFamily("vllm:engine_sleep_state", "Sleep.", labels=[*_LABELS, "sleep_state"])
        for number, _ in self._shown():
            for state, level in LEVELS.items():
                sleep.add_metric([self._models[0], str(number), state], float(level == self._sleep.level))
        yield sleep
        yield self._counter(
            "prefix_cache_queries", lambda rank: rank.counters.prompt_tokens, "Prompt tokens looked up."
        )
        yield self._counter(
            "prefix_cache_hits", lambda rank: rank.counters.cached_tokens, "Prompt tokens found cached."
        )
        yield self._counter("num_preemptions", lambda rank: rank.counters.preemptions, "Preemptions.")
        yield self._counter("prompt_tokens", lambda rank: rank.counters.prompt_tokens, "Prefill tokens processed.")
        yield self._counter("generation_tokens", lambda rank: rank.counters.generated_tokens, "Tokens generated.")
        yield self._success()
        yield self._lora_info()
        info = GaugeMetricFamily("vllm:cache_config_info", "Cache configuration.", labels=_CACHE_LABELS)
        for number, rank in self._shown():
            info.add_metric([str(rank.config.block_size), str(rank.config.num_blocks), "True", str(number)], 1)
        yield info

    def _shown(self) -> Iterator[tuple[int, EngineModel]]:
        """The ranks that are read, with their numbers."""
        return ((number, rank) for number, rank in enumerate(self._ranks) if number not in self.hidden)

    def _success(self) -> Metric:
        success = CounterMetricFamily(
            "vllm:request_success", "Finished requests.", labels=[*_LABELS, "finished_reason"]
        )
        aborted = {(number, self._models[0], "abort"): rank.counters.aborted for number, rank in self._shown()}
        for (number, model, reason), count in (self._finished | aborted).items():
            if number not in self.hidden:
                success.add_metric([model, str(number), reason], count)
        return success

    def _lora_info(self) -> Metric:
        sequences = [(rank.waiting, rank.running) for _, rank in self._shown()]
        labels = {
            "max_lora": str(self._ranks[0].config.max_loras),
            "waiting_lora_adapters": ",".join(sorted({s.lora for waiting, _ in sequences for s in waiting if s.lora})),
            "running_lora_adapters": ",".join(sorted({s.lora for _, running in sequences for s in running if s.lora})),
        }
        info = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use.", labels=list(labels))
        # vLLM's value is the time of the reading; readers take the sample with the latest.
        info.add_metric(list(labels.values()), time.time())
        return info

    def _gauge(self, name: str, value: Callable[[EngineModel], float], about: str) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", about, labels=_LABELS)
        for number, rank in self._shown():
            family.add_metric([self._models[0], str(number)], 0 if number in self.idle else value(rank))
        return family

    def _counter(self, name: str, value: Callable[[EngineModel], float], about: str) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", about, labels=_LABELS)
        for number, rank in self._shown():
            family.add_metric([self._models[0], str(number)], value(rank))
        return family

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> dict[tuple[int, str], Histogram]:
        """A histogram for each rank and model."""
        histogram = Histogram(
            f"vllm:{name}_seconds",
            f"Histogram of {name.replace('_', ' ')} in seconds.",
            labelnames=_LABELS,
            registry=self._registry,
            buckets=buckets,
        )
        return {
            (rank, model): histogram.labels(model_name=model, engine=str(rank))
            for rank in range(len(self._ranks))
            for model in self._models
        }
