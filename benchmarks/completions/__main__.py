"""The cost of a completion in the metrics-collector (decoding, counting, learning), and the cost of a scrape.

python -m benchmarks.completions
"""

import argparse
import time

from prometheus_client import CollectorRegistry, generate_latest

from pointsman_contracts.journey import Target
from pointsman_contracts.response import Attempt, ResponseCompleted, Usage
from pointsman_core.config import load
from pointsman_metrics_collector.adapters.response_metrics import ResponseMetrics
from pointsman_metrics_collector.domain.models import ModelNames, ModelWindow

POOLS = 4


def payloads(count: int) -> list[bytes]:
    """Completions as an edge publishes them."""
    return [
        ResponseCompleted(
            request_id=f"req-{n:032x}",
            source="frontend-host-1",
            sequence=n,
            at_ms=1_750_000_000_000 + n,
            pool=f"pool-{n % POOLS}",
            worker=f"engine-{n % 8}",
            model="auto",
            target=Target(model=f"model-{n % POOLS}", pool=f"pool-{n % POOLS}"),
            profile="standard",
            api="chat.completions",
            stream=True,
            status=200,
            outcome="ok",
            attempts=(Attempt(worker=f"engine-{n % 8}", outcome="answered", status=200, took_ms=812.0),),
            decided_ms=1.1,
            ttft_ms=41.0 + n % 100,
            duration_ms=800.0,
            usage=Usage(prompt_tokens=900, completion_tokens=60, cached_tokens=512),
            bytes_out=11_000,
        ).encode()
        for n in range(count)
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--completions", type=int, default=20_000)
    chosen = options.parse_args()
    pools = {f"pool-{n}": {"models": [f"model-{n}"]} for n in range(POOLS)}
    names = ModelNames(load({"pools": pools}), lambda _pool, _model: False)
    registry = CollectorRegistry()
    metrics, windows = ResponseMetrics(registry), {f"model-{n}": ModelWindow() for n in range(POOLS)}
    encoded = payloads(chosen.completions)

    started = time.process_time()
    decoded = [ResponseCompleted.decode(payload) for payload in encoded]
    decoding = (time.process_time() - started) / len(encoded) * 1e6
    started = time.process_time()
    for completed in decoded:
        pool, model = names.find_served(completed)
        metrics.count_completion(completed, pool, model)
        windows[model].add_completion(completed, started)
    counting = (time.process_time() - started) / len(encoded) * 1e6
    started = time.process_time()
    generate_latest(registry)
    scrape = (time.process_time() - started) * 1e3
    print(f"one completion of {len(encoded[0])} bytes: decoding {decoding:.1f} µs, counting {counting:.1f} µs")
    print(f"2,500 a second are {(decoding + counting) * 2500 / 1e4:.1f} % of a core; one scrape takes {scrape:.1f} ms")


if __name__ == "__main__":
    main()
