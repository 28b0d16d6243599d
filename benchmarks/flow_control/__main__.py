"""The cost of flow control per request, with few and with many waiting.

python benchmarks/flow_control

Prints the median time of each operation, its bar, and the machine.
"""

import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final

from pointsman_core.config.flow_control import FlowControl
from pointsman_scheduler.domain.flow_control import (
    Capacity,
    Dispatch,
    FlowController,
    Item,
    compile_flow_control,
)
from pointsman_scheduler.plugins.flow_control import flow_registries

FULL: Final = Capacity(4, 1.0)
FREE: Final = Capacity(4, 0.0)
BAR_US: Final = 50.0
ROUNDS: Final = 2000


def controller(waiting: int, fairness: str) -> FlowController[int]:
    """A controller in which `waiting` requests of 1,000 flows and 3 priorities wait."""
    settings = FlowControl.model_validate(
        {"default_band": {"max_requests": None, "fairness": fairness}, "max_requests": None, "ttl": "1h"}
    )
    flow = FlowController[int](compile_flow_control(settings, flow_registries()))
    for i in range(waiting):
        flow.offer_request(item(i, 0.0), 0.0, FULL)
    return flow


def item(number: int, now: float) -> Item[int]:
    """One of many."""
    return Item(
        f"r{number}", now, payload=number, flow=f"f{number % 1000}", priority=number % 3, size=1000, deadline=now + 3000
    )


def median_us(operation: Callable[[int], object]) -> float:
    """Median over `ROUNDS` calls."""
    took: list[float] = []
    for i in range(ROUNDS):
        began = time.perf_counter()
        operation(i)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


def main() -> int:
    """Exit status 0 when every bar is met."""
    met = True
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}; bar {BAR_US:.0f} us each")
    print(f"{'fairness':24} {'waiting':>8} {'park':>8} {'cancel':>8} {'dispatch':>9}   us")
    for fairness in ("round-robin", "global-strict", "least-attained-service"):
        for waiting in (0, 1000, 100_000):
            flow = controller(waiting, fairness)
            items = [item(10**6 + i, 1.0) for i in range(ROUNDS)]
            park = median_us(lambda i: flow.offer_request(items[i], 1.0, FULL))  # noqa: B023 - called at once
            dispatch = median_us(lambda _: _dispatch_one(flow))  # noqa: B023 - as above
            again = [item(2 * 10**6 + i, 1.0) for i in range(ROUNDS)]
            for each in again:
                flow.offer_request(each, 1.0, FULL)
            cancel = median_us(lambda i: flow.cancel_request(again[i].request, 2.0))  # noqa: B023 - as above
            in_time = max(park, cancel, dispatch) <= BAR_US
            met &= in_time
            verdict = "ok" if in_time else "MISSED"
            print(f"{fairness:24} {waiting:8} {park:8.1f} {cancel:8.1f} {dispatch:9.1f}   {verdict}")
    return 0 if met else 1


def _dispatch_one(flow: FlowController[int]) -> Dispatch[int]:
    for outcome in flow.wake_requests(2.0, lambda: FREE, most=1):
        if isinstance(outcome, Dispatch):
            return outcome
    raise AssertionError("nothing waited")


if __name__ == "__main__":
    sys.exit(main())
