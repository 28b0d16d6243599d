"""The cost of rules in the profile-picker. Run: `python -m benchmarks.rules`.

Shortest of many rounds, one thread, no bus: the picker alone with one to fifty rules of which the last one holds, with
the headers of the others absent or present, and the whole stage with the three rules of the sample configuration.
"""

import sys
import time
from collections.abc import Callable

from pointsman_contracts.journey import Journey, RequestFacts
from pointsman_contracts.message import Blob
from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import load
from pointsman_core.settled_target import settled
from pointsman_plugins.picking import PoolStates
from pointsman_profile_picker.configuration import compile_routing
from pointsman_profile_picker.domain.route import Routing
from pointsman_testing.builders import journey

FIFTY_BAR_US = 250.0
STAGE_BAR_US = 60.0
POOLS = {"llama-8b": {"models": ["llama-8b"]}, "llama-70b": {"models": ["llama-70b"]}}
PROFILES = {name: {"request": ["scheduler"]} for name in ("standard", "priority", "overflow")}


def routing(rules: list[dict[str, str]]) -> Routing:
    """The picker with these rules."""
    picker = {"use": "rules", "rules": rules, "default": "standard"}
    return compile_routing(load({"pools": POOLS, "profiles": PROFILES, "profile-picker": picker}))


def fifty(count: int) -> Routing:
    """`count` rules over headers, fields, identity and pools; only the last one holds."""
    kinds = (
        'headers["x-route-{n}"] == "yes"',
        'model == "model-{n}" && fields.temperature > 0.5',
        'identity.tenant == "tenant-{n}"',
        'path == "/v1/embeddings" && prompt_tokens > {n}',
        'pools["llama-8b"].saturation >= 1.0 && model.startsWith("m{n}")',
    )
    rules = [{"when": kinds[n % len(kinds)].replace("{n}", str(n)), "profile": "overflow"} for n in range(count - 1)]
    return routing([*rules, {"when": 'model == "llama-8b"', "profile": "priority"}])


def request() -> Journey:
    """A chat of a known tenant."""
    facts = RequestFacts(
        api="chat.completions",
        path="/v1/chat/completions",
        prompt_tokens=256,
        blocks=Blob(bytes(32)),
        headers={"content-type": "application/json", "user-agent": "OpenAI/Python 2.0", "x-request-id": "0a1b"},
        fields={"model": "llama-8b", "temperature": 0.2, "stream": True},
        attributes={"identity": {"tenant": "acme", "plan": "gold"}},
    )
    return journey("profile-picker", request=facts, target=None)


def shortest_us(work: Callable[[], object], seconds: float = 0.5) -> float:
    """Microseconds of one call: the best of many rounds of a hundred."""
    best = float("inf")
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        for _ in range(100):
            work()
        best = min(best, (time.perf_counter() - started) / 100)
    return best * 1e6


def main() -> int:
    """Measure everything; 1 when a bar is missed."""
    pools = PoolStates()
    for name in POOLS:
        pools.update(PoolSnapshot(pool=name, source="c", sequence=1, at_ms=1, saturation=0.4), 0.0)
    asked = request()
    kept: list[bool] = []

    def measure(name: str, work: Callable[[], object], bar: float | None = None) -> None:
        took = shortest_us(work)
        kept.append(bar is None or took <= bar)
        print(
            f"  {name:<24} {took:8.1f} us" + (f"   bar {bar:g} us   {'kept' if kept[-1] else 'MISSED'}" if bar else "")
        )

    for count in (1, 3, 10, 50):
        compiled = fifty(count)
        bar = FIFTY_BAR_US if count == 50 else None
        measure(f"{count} rules", lambda compiled=compiled: compiled.pick_profile(asked, pools, 1.0), bar)
    sample = routing(
        [
            {"when": 'headers["x-priority"] == "high"', "profile": "priority"},
            {"when": 'model == "auto" && pools["llama-8b"].saturation >= 1.0', "profile": "overflow"},
            {"when": 'model == "auto"', "profile": "overflow"},
        ]
    )

    def stage() -> Journey:
        picked = sample.pick_profile(asked, pools, 1.0)
        serving = sample.find_serving(asked.wanted, pools)
        changes = settled(asked, serving.target, serving.block_tokens)
        changes["profile"] = picked.profile
        return asked.changed(**changes)

    measure("stage, sample rules", stage, STAGE_BAR_US)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
