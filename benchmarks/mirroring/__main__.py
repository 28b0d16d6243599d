"""What a mirror costs clients, and what it finds. Run: `python -m benchmarks.mirroring [--requests 600]`.

A gateway of real processes. Two engines are played by this process: each answers a chat of a kilobyte after about
20 ms, the candidate's after `--slower` times that. Eight clients send requests, in turns without mirror, with a mirror
of a twentieth, with one of everything, and with one of everything whose candidate hangs. Prints the median and 99th
percentile of clients' times, and the frontend's CPU time a request: of several rounds the least, since other guests of
the machine only add. Then prints `pointsman mirrors` for the candidate and for the first model against itself.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import aiohttp
import uvloop

from benchmarks.machine import describe
from benchmarks.overhead import cpu
from pointsman_contracts.mirroring import MirrorCompared
from pointsman_contracts.subjects import ANY
from pointsman_testing import eventually
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.observer import observing
from pointsman_testing.scripted_engine import Received
from pointsman_testing.stack import Stack, StackFactory

SAMPLE: Final = Path(__file__).resolve().parents[2] / "pointsman.yaml"
CLIENTS: Final = 8
ROUNDS: Final = 4
ANSWER_S: Final = 0.02
OWN, LAB = "llama-3.1-8b", "lab-8b"
TEXT: Final = " ".join(f"word{number}" for number in range(150))
PROFILES: Final[dict[str, list[Any]]] = {
    "off": [],
    "0.05": [{"stage": "mirror/lab", "share": 0.05}],
    "1": ["mirror/lab"],
    "1, hangs": ["mirror/lab"],
}


class Measured(NamedTuple):
    """One round."""

    times_ms: list[float]
    cpu_ms: float
    """Of the frontend, a request."""


def answering(mean_s: float) -> Callable[[Received], Awaitable[None]]:
    """Answers after a time that varies by a fifth."""
    chance = random.Random(7)

    async def answer(request: Received) -> None:
        await asyncio.sleep(mean_s * chance.uniform(0.8, 1.2))
        text = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 200, "completion_tokens": 150, "total_tokens": 350}
        await request.answer(json.dumps({"id": "c", "model": "m", "choices": [text], "usage": usage}).encode())

    return answer


def configuration(own: FakeEngine, lab: FakeEngine) -> dict[str, Any]:
    headers = [{"when": f'headers["x-mirrored"] == "{name}"', "profile": name} for name in PROFILES]
    return {
        "pools": {
            "llama-8b": {"models": [OWN, "sql-lora"], "discovery": "static", "engines": [own.url]},
            "lab": {"models": [LAB], "discovery": "static", "engines": [lab.url]},
        },
        "models": {OWN: {"pool": "llama-8b"}, LAB: {"pool": "lab"}},
        "selectors": {},
        "profile-picker": {"use": "rules", "rules": headers, "default": "off"},
        "mirrors": {"lab": {"to": [LAB, OWN], "at_once": 8, "within": "20s", "priority": 0}},
        "profiles": {name: {"request": ["scheduler"], "response": back} for name, back in PROFILES.items()},
    }


async def send(stack: Stack, profile: str, requests: int) -> Measured:
    """One round: the clients' times, and the frontend's CPU time."""
    body = json.dumps({"model": OWN, "messages": [{"role": "user", "content": "x" * 1000}]}).encode()
    headers = {"content-type": "application/json", "x-mirrored": profile}
    pid = stack.services["frontend"][0].pid
    times: list[float] = []
    left = iter(range(requests))

    async def client(http: aiohttp.ClientSession) -> None:
        for _ in left:
            began = time.perf_counter()
            async with http.post(f"{stack.door}/v1/chat/completions", data=body, headers=headers) as answer:
                await answer.read()
                assert answer.status == 200
            times.append((time.perf_counter() - began) * 1000)

    before = cpu.seconds(pid)
    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(client(http) for _ in range(CLIENTS)))
    return Measured(times, (cpu.seconds(pid) - before) * 1000 / requests)


async def run(requests: int, slower: float) -> None:
    """Print the figures."""
    print(describe())
    own = FakeEngine(models={"data": [{"id": OWN}]})
    lab = FakeEngine(models={"data": [{"id": LAB}]})
    own.pages["/v1/chat/completions"] = answering(ANSWER_S)
    lab.pages["/v1/chat/completions"] = answering(ANSWER_S * slower)
    rounds: defaultdict[str, list[Measured]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        async with (
            own,
            lab,
            StackFactory(Path(folder), SAMPLE).start(
                replicas={"mirror": 1}, engines=0, changes=configuration(own, lab), hop_budget=None
            ) as stack,
            observing(stack.nats.url) as observer,
        ):
            compared = observer.listen(MirrorCompared, ANY)
            for _ in range(ROUNDS):
                for profile in PROFILES:
                    if profile.endswith("hangs"):
                        lab.hang()
                    rounds[profile].append(await send(stack, profile, requests))
                    lab.release()
            for profile, found in rounds.items():
                times = min((each.times_ms for each in found), key=median)
                spent = min(each.cpu_ms for each in found)
                print(f"{profile:10} p50 {median(times):6.1f} ms  p99 {quantiles(times, n=100)[98]:6.1f} ms"
                      f"  frontend {spent:.3f} ms of CPU a request")  # fmt: skip
            settled = 0
            while settled != len(compared):
                settled = len(compared)
                await asyncio.sleep(1.0)
            await eventually(lambda: bool(compared))
            _, output = await stack.command("mirrors", "--json")
            print(output)


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600, help="of a round")
    parser.add_argument("--slower", type=float, default=1.1, help="the candidate's time over the first model's")
    options = parser.parse_args()
    uvloop.run(run(options.requests, options.slower))
    return 0


if __name__ == "__main__":
    sys.exit(main())
