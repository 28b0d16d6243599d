"""Sessions keep their engine through a scheduler's death. Run: `python -m benchmarks.sticky.live [--sessions 1000]`.

A gateway of real processes with three schedulers and six simulated engines, and a policy with `sticky`. Each session
sends a turn; a second later one scheduler is killed; each session sends another turn. (A scheduler that dies within
milliseconds of a decision may not have told the others of it.) Prints the sessions whose second turn had the
engine of the first one, and the requests that failed.
"""

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
import uvloop
from pydantic import JsonValue

from benchmarks.machine import describe
from pointsman_testing.stack import Stack, StackFactory

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"
ENGINES: Final = 6
SCHEDULERS: Final = 3
AT_ONCE: Final = 16
SETTLED_S: Final = 1.0
STICKY: Final[dict[str, JsonValue]] = {"scheduling": {"default": {"sticky": {"for": "10m", "unless": ["gone"]}}}}


async def take_turns(stack: Stack, sessions: int, statuses: Counter[int]) -> dict[str, str | None]:
    """One request of each session. Returns the engine of each."""
    waiting = [f"session-{number}" for number in range(sessions)]
    engines: dict[str, str | None] = {}

    async def client(http: aiohttp.ClientSession) -> None:
        while waiting:
            session = waiting.pop()
            body = {"model": "llama-3.1-8b", "prompt": f"Turn of {session}", "max_tokens": 2}
            async with http.post(
                f"{stack.door}/v1/completions", json=body, headers={"x-session-id": session}
            ) as answer:
                await answer.read()
                statuses[answer.status] += 1
                engines[session] = answer.headers.get("x-simulated-engine")

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(client(http) for _ in range(AT_ONCE)))
    return engines


async def run(sessions: int) -> bool:
    """Print the figures. Returns whether each session kept its engine, and no request failed."""
    print(describe())
    statuses = Counter[int]()
    with TemporaryDirectory() as folder:
        factory = StackFactory(Path(folder), SAMPLE)
        async with factory.start(
            replicas={"scheduler": SCHEDULERS}, engines=ENGINES, speedup=100.0, hop_budget=None, changes=STICKY
        ) as stack:
            before = await take_turns(stack, sessions, statuses)
            await asyncio.sleep(SETTLED_S)
            stack.services["scheduler"][0].kill()
            after = await take_turns(stack, sessions, statuses)
    kept = sum(after[session] == engine for session, engine in before.items())
    failed = statuses.total() - statuses[200]
    spread = ", ".join(f"{name} {count}" for name, count in sorted(Counter(map(str, before.values())).items()))
    print(f"{sessions} sessions over {SCHEDULERS} schedulers, one of them killed between two turns: {spread}")
    print(f"kept their engine: {kept} of {sessions}; requests that failed: {failed}")
    return kept == sessions and not failed


def main() -> int:
    """Exit status 0 when each session kept its engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    return 0 if uvloop.run(run(parser.parse_args().sessions)) else 1


if __name__ == "__main__":
    sys.exit(main())
