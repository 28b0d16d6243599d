"""A mixed run of real processes whose schedulers keep flight logs, and their replay."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from pydantic import JsonValue

from pointsman_flight.reader import open_log
from pointsman_flight.records import Decided
from pointsman_scheduler.flight.replay import FlightReplay
from pointsman_scheduler.plugins import registries
from pointsman_testing.stack import POOL, Stack, StackFactory
from pointsman_testing.traffic import Traffic

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"
ENGINES: Final = 4
SCHEDULERS: Final = 2
FAMILIES: Final = 300
FLIGHT: Final[dict[str, JsonValue]] = {"keep": "8GiB", "segment": "2min"}

_SCORERS: Final[list[JsonValue]] = [
    {"use": "prefix-cache", "weight": 2},
    {"use": "queue"},
    {"use": "kv-utilization"},
    {"use": "lora-affinity"},
]
POLICIES: Final[Mapping[str, dict[str, JsonValue]]] = {
    "late binding": {},
    "flow control": {
        "flow_control": {"detector": {"use": "concurrency", "max_requests": 4}, "default_band": {"max_requests": 500}},
    },
    "prefill and decode apart": {
        "handler": {"use": "disaggregated"},
        "profiles": {
            "prefill": {"scorers": _SCORERS, "picker": "weighted-random"},
            "decode": {"scorers": [{"use": "queue"}, {"use": "kv-utilization"}], "picker": "max-score"},
        },
    },
    "weighted scorers": {"scorers": _SCORERS, "picker": "power-of-two"},
}
"""The policies that take turns; each is a configuration revision."""


class Replays(NamedTuple):
    """The results of replaying a folder of logs."""

    decisions: Counter[str]
    """By outcome."""
    policies: Counter[str]
    """Decisions by the hash of the policy."""
    lives: int
    inputs: int
    segments: int
    bytes: int
    differences: list[str]
    seconds: float


def bodies(seed: int) -> Callable[[], Mapping[str, JsonValue]]:
    """Makes bodies: families that share a beginning, one in three streamed, one in six for the adapter."""
    dice = random.Random(seed)
    beginnings = [" ".join(str(dice.randrange(10**5)) for _ in range(dice.randrange(50, 400))) for _ in range(FAMILIES)]
    weights = [1.0 / (rank + 1) ** 0.7 for rank in range(FAMILIES)]

    def body() -> Mapping[str, JsonValue]:
        (beginning,) = dice.choices(beginnings, weights)
        question = " ".join(str(dice.randrange(10**5)) for _ in range(dice.randrange(5, 60)))
        model = "sql-lora" if dice.random() < 1 / 6 else "llama-3.1-8b"
        tokens = dice.choice((4, 8, 16))
        return {
            "model": model, "prompt": f"{beginning} {question}", "max_tokens": tokens, "stream": dice.random() < 0.6,
        }  # fmt: skip

    return body


def revised(stack: Stack, folder: Path, policy: Mapping[str, JsonValue]) -> Path:
    """The stack's configuration with another scheduling policy."""
    document = yaml.safe_load(stack.config.read_text(encoding="utf-8"))
    document["scheduling"] = {"default": dict(policy)}
    file = folder / "revised.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return file


async def fly(folder: Path, requests: int, rate: float) -> tuple[Counter[int], list[str]]:
    """Send so many requests while schedulers are killed, engines restarted and policies changed. Returns the statuses
    and what was done."""
    document = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    pools = document["pools"]
    pools[POOL]["flight"] = FLIGHT
    done: list[str] = []
    seconds = requests / rate
    step = seconds / (2 * len(POLICIES) + 1)
    factory = StackFactory(folder, SAMPLE)
    async with (
        factory.start(
            replicas={"scheduler": SCHEDULERS},
            engines=ENGINES,
            speedup=1.5,
            stored=True,
            changes={"pools": pools},
            settings={"POINTSMAN_FLIGHT_DIR": str(folder / "flight")},
        ) as stack,
        Traffic(f"{stack.door}/v1/completions", rate, bodies(1), timeout=60.0) as traffic,
    ):
        for turn in range(2):
            for name, policy in POLICIES.items():
                await asyncio.sleep(step / 2)
                code, output = await stack.command("config", "apply", str(revised(stack, folder, policy)))
                done.append(name if code == 0 else f"{name} refused: {output[-200:]}")
                await asyncio.sleep(step / 2)
                if name == "flow control":
                    stack.services["scheduler"][turn].kill()
                    await stack.restart("scheduler", turn)
                    done.append("a scheduler was killed")
                if name == "late binding":
                    await stack.engines[turn].restart()
                    done.append("an engine restarted")
        await asyncio.sleep(max(0.0, seconds - traffic.now))
    return traffic.statuses(), done


def replay(directory: Path) -> Replays:
    """Replay every log of a folder, from its beginning."""
    began = time.monotonic()
    decisions, policies, differences = Counter[str](), Counter[str](), list[str]()
    inputs = 0
    flights = open_log([directory])
    for flight in flights:
        replaying = FlightReplay(flight, registries())
        for step in replaying.run():
            record = step.logged.record
            inputs = inputs + 1
            if isinstance(record, Decided):
                bound = " after waiting for its engine" if record.bound is not None else ""
                held = " after flow control" if record.queued_s else ""
                decisions[record.outcome.kind + bound + held] += 1
                policies[replaying.policies[record.policy].hash] += 1
            if step.difference:
                place = f"{step.logged.segment.path.name}, input {step.logged.number}"
                differences.append(f"{place}, {type(record).__name__}: {step.difference}")
    paths = list(directory.rglob("*.flight"))
    size = sum(path.stat().st_size for path in paths)
    took = time.monotonic() - began
    return Replays(decisions, policies, len(flights), inputs, len(paths), size, differences, took)
