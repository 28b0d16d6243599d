"""Real preprocessors count together on a real NATS server, and what they counted outlives them."""

import asyncio
import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from pointsman_contracts.limits import LimitShard
from pointsman_contracts.response import Usage
from pointsman_limits.domain.limits.sharding import shard_of
from pointsman_testing import Processes, eventually
from pointsman_testing.answered import answered
from pointsman_testing.nats_server import NatsServer
from pointsman_testing.observer import Observer, observing
from pointsman_testing.preprocessed import Judged, PreprocessorSurroundings, surroundings
from pointsman_testing.processes import ServiceProcess

CONFIG = """
edge: {hop_budget: 3s}
preprocessing:
  - identity-headers
  - {use: request-limit, per: [tenant], rate: 1000/s}
  - {use: token-limit, per: [tenant], amount: 2000/h, expected_output: 120}
"""


class Preprocessors:
    def __init__(self, processes: Processes, url: str, config: Path) -> None:
        self._processes = processes
        self._env = {"POINTSMAN_NATS_URL": url, "POINTSMAN_CONFIG": str(config)}
        self.running: dict[str, ServiceProcess] = {}

    async def start(self, *instances: str) -> None:
        for name in instances:
            env = self._env | {"POINTSMAN_INSTANCE": name}
            self.running[name] = self._processes.fork("pointsman-preprocessor", env=env)
        await asyncio.gather(*(self.running[name].wait_ready() for name in instances))

    def kill(self, instance: str) -> None:
        self.running.pop(instance).kill()


@pytest.fixture
def preprocessors(own_nats_server: NatsServer, processes: Processes, tmp_path: Path) -> Preprocessors:
    config = tmp_path / "pointsman.yaml"
    config.write_text(CONFIG)
    return Preprocessors(processes, own_nats_server.url, config)


async def _until_refused(around: PreprocessorSurroundings) -> tuple[str, list[Judged]]:
    """A tenant, and its requests that were admitted before the first one that wasn't, many at once. Another tenant
    where a busy machine kept the one who counts for so long that nobody could say."""
    tenants = itertools.count(1)

    async def judged() -> tuple[int, str, list[Judged]]:
        tenant = f"t{next(tenants)}"
        found = await asyncio.gather(*(around.send(tenant, max_tokens=120) for _ in range(30)))
        return max(each.status or 503 for each in found), tenant, list(found)

    _, tenant, found = await answered(judged)
    assert {each.status for each in found} == {200, 429}
    return tenant, [each for each in found if each.status == 200]


async def _send(around: PreprocessorSurroundings, tenant: str) -> Judged:
    """One more request, once a preprocessor counts for the tenant."""

    async def judged() -> tuple[int, Judged]:
        found = await around.send(tenant, max_tokens=120)
        return found.status or 503, found

    return (await answered(judged))[1]


async def _saved(observer: Observer, tenant: str, charges: int) -> LimitShard:
    async def found() -> LimitShard | None:
        shard = await observer.entry(LimitShard, str(shard_of(f"tenant {tenant}")))
        open_ones = [] if shard is None else [each for each in shard.charges if each.limit == "token-limit"]
        return shard if len(open_ones) == charges else None

    return await eventually(found)


@pytest.mark.requirement("S3-10", "LIMIT-1")
async def test_counts_outlive_the_preprocessor_that_keeps_them_and_all_of_them(
    preprocessors: Preprocessors, own_nats_server: NatsServer
) -> None:
    await preprocessors.start("one", "two")
    async with observing(own_nats_server.url) as observer:
        async with surroundings(own_nats_server.url, 2, hop_budget_s=3.0) as around:
            tenant, admitted = await _until_refused(around)
            admitted_cost = _cost(admitted)
            assert len(admitted) == 2000 // admitted_cost
            # Another tenant's quota is its own.
            other = await _send(around, "u")
            assert other.status == 200
            shard = await _saved(observer, tenant, len(admitted))
            preprocessors.kill(shard.keeper)
            refused = await _send(around, tenant)
            assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
            assert refused.headers["x-ratelimit-limit-tokens"] == "2000"
            assert (refused.retry_after_s or 0) > 3000, "an hour's window leaves by the minute"
            for each in admitted:
                around.complete(each, Usage(prompt_tokens=1, completion_tokens=49))

            async def room() -> Judged | None:
                judged = await around.send(tenant, max_tokens=120)
                return judged if judged.status == 200 else None

            after = await eventually(room)
            used = 50 * len(admitted)
            left = int(after.headers["x-ratelimit-remaining-tokens"] or 0)
            assert left == 2000 - used - admitted_cost, "settled once, with what was used"
            around.complete(after, Usage(prompt_tokens=1, completion_tokens=49))
        [survivor] = preprocessors.running.values()
        assert await survivor.terminate() == 0
        preprocessors.running.clear()
        await preprocessors.start("three")
        async with surroundings(own_nats_server.url, 1, hop_budget_s=3.0) as around:
            judged = await _send(around, tenant)
            assert judged.headers["x-ratelimit-remaining-tokens"] == str(2000 - used - 50 - admitted_cost)


def _cost(admitted: Iterable[Judged]) -> int:
    """The cost of each: that of the one that was counted first, which needn't be the one sent first."""
    return 2000 - max(int(each.headers["x-ratelimit-remaining-tokens"] or 0) for each in admitted)


async def test_a_limit_holds_while_the_preprocessor_that_counts_is_stopped_and_goes_on(
    preprocessors: Preprocessors, own_nats_server: NatsServer, tmp_path: Path
) -> None:
    limit = "{use: request-limit, per: [tenant], rate: 20/h, burst: 20}"
    (tmp_path / "pointsman.yaml").write_text(f"preprocessing: [identity-headers, {limit}]\n")
    await preprocessors.start("one", "two")
    async with observing(own_nats_server.url) as observer, surroundings(own_nats_server.url, 2) as around:
        judged = [await _send(around, "t")]

        async def kept() -> LimitShard | None:
            return await observer.entry(LimitShard, str(shard_of("tenant t")))

        keeper = preprocessors.running[(await eventually(kept)).keeper]
        for _ in range(2):
            sent = [asyncio.create_task(around.send("t")) for _ in range(15)]
            await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
            keeper.pause()
            judged += await asyncio.gather(*sent, *(around.send("t") for _ in range(15)))
            keeper.resume()
            judged += await asyncio.gather(*(around.send("t") for _ in range(15)))
        judged.append(await _send(around, "t"))
    assert sum(each.status == 200 for each in judged) <= 20
