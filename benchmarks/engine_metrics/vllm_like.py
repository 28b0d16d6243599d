"""An engine's `/metrics` with the families and buckets that vLLM has, in a process of its own."""

import os
from multiprocessing.connection import Connection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import start_http_server

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
HISTOGRAMS = {
    "time_to_first_token_seconds": 22,
    "inter_token_latency_seconds": 19,
    "request_time_per_output_token_seconds": 19,
    "e2e_request_latency_seconds": 21,
    "request_queue_time_seconds": 21,
    "request_inference_time_seconds": 21,
    "request_prefill_time_seconds": 21,
    "request_decode_time_seconds": 21,
    "request_prompt_tokens": 15,
    "request_generation_tokens": 15,
    "request_max_num_generation_tokens": 15,
    "request_params_max_tokens": 15,
    "request_params_n": 5,
    "iteration_tokens_total": 14,
}
COUNTERS = ("prompt_tokens", "generation_tokens", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "engine_sleep_state")
HTTP_HANDLERS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")


def vllm_registry() -> CollectorRegistry:
    """As a vLLM of one engine that serves one model."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    labels = ["engine", "model_name"]
    for name, buckets in HISTOGRAMS.items():
        histogram = Histogram(
            f"vllm:{name}", name, labels, registry=registry, buckets=[0.1 * n for n in range(1, buckets)]
        )
        histogram.labels("0", MODEL).observe(0.5)
    for name in COUNTERS:
        Counter(f"vllm:{name}", name, labels, registry=registry).labels("0", MODEL).inc(1000)
    for name in GAUGES:
        Gauge(f"vllm:{name}", name, labels, registry=registry).labels("0", MODEL).set(0.5)
    duration = Histogram(
        "http_request_duration_seconds",
        "Duration of requests",
        ["handler", "method"],
        registry=registry,
        buckets=[0.05 * n for n in range(1, 24)],
    )
    for handler in HTTP_HANDLERS:
        duration.labels(handler, "POST").observe(0.1)
    return registry


def serve(pipe: Connection) -> None:
    """The engine's process: sends its port, then its CPU seconds so far on every request, until asked to end."""
    server, _ = start_http_server(0, "127.0.0.1", vllm_registry())
    pipe.send(server.server_port)
    while pipe.recv():
        usage = os.times()
        pipe.send(usage.user + usage.system)
