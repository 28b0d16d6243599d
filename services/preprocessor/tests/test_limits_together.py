"""Limits right behind each other ask their keeper in one message, and count as if each were asked in its turn."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

import orjson
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.limits import LimitAsks, LimitReleases, LimitVerdicts
from pointsman_core.config import load
from pointsman_core.refusal import Refusal
from pointsman_limits.domain.limits.sharding import keeper_of, shard_of
from pointsman_limits.keepers.limit_metrics import LimitMetrics
from pointsman_limits.keepers.shard_keeper import ShardKeeper
from pointsman_limits.keepers.shared_limiter import SharedLimiter
from pointsman_plugins.preprocessing import IDENTITY, Incoming, Ports
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.domain.pipeline import Pipeline
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_preprocessor.plugins.limit import Limit, ask_together
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses
from pointsman_testing.eventually import PATIENCE_S
from pointsman_testing.fake_bucket import FakeBucket

TENANT: Final = "t"
SHARD: Final = shard_of(f"tenant {TENANT}")
FEW: Final[dict[str, object]] = {"use": "request-limit", "name": "few", "per": ["tenant"], "rate": "2/h", "burst": 2}
MANY: Final[dict[str, object]] = {
    "use": "request-limit",
    "name": "many",
    "per": ["tenant"],
    "rate": "100/h",
    "burst": 100,
}
OPEN: Final[dict[str, object]] = {"use": "concurrency-limit", "name": "open", "per": ["tenant"], "limit": 3}


class Node:
    """The limits of one preprocessor."""

    def __init__(self, buses: Buses, instance: str, store: FakeBucket) -> None:
        self.service = buses.make("preprocessor", instance)
        bus, heartbeat, metrics = self.service.bus, self.service.heartbeat, LimitMetrics(CollectorRegistry())
        self.keeper = ShardKeeper(bus, heartbeat, store, metrics, time.time)
        self.limiter = SharedLimiter(bus, heartbeat, self.keeper, metrics, time.time)
        self.asked: list[list[str]] = []
        """The limits of each message that it could answer: a busy machine can hold it up for longer than its lease, and
        then it is asked again."""
        self.earlier = False
        """It is of a version that counts each question by itself."""
        self.mute = 0
        """Questions that it counts, and doesn't answer."""
        bus.answer(LimitAsks, self._answer, self.keeper.me)
        bus.listen(LimitReleases, self.limiter.receive_release, self.keeper.me)
        self.keeper.begin_keeping()
        self.ticking = asyncio.get_running_loop().create_task(self._tick())

    def _answer(self, asks: LimitAsks | LimitAsks) -> bytes:
        assert isinstance(asks, LimitAsks)
        if self.earlier:
            asks = LimitAsks(asks=tuple([replace(each, follows=None) for each in asks.asks]))
        answer = self.limiter.answer_peers(asks)
        if LimitVerdicts.decode(answer).verdicts[0].outcome == "elsewhere":
            return answer
        self.asked.append([each.limit for each in asks.asks])
        if self.mute:
            self.mute -= 1
            raise ValueError("the test says so")
        return answer

    async def _tick(self) -> None:
        while True:
            self.keeper.tick()
            await asyncio.sleep(0.02)

    def open(self) -> list[str]:
        """The limits with a charge of the tenant's requests, one for each."""
        book = self.keeper.find_book(SHARD)
        return [] if book is None else sorted(each.limit for charges in book.charges.values() for each in charges)


class Pair:
    """The keeper of the tenant's counts, and another preprocessor that requests come to."""

    def __init__(self, keeper: Node, asking: Node) -> None:
        self.keeper = keeper
        self.asking = asking
        self._number = 0

    def pipeline(self, *limits: dict[str, object]) -> Pipeline:
        document = {"preprocessing": [{"use": "identity-headers"}, *limits]}
        made = compile_pipeline(load(document), ports=Ports(self.asking.limiter))
        ask_together(made.steps)
        return made

    async def send(self, pipeline: Pipeline, limits: dict[str, JsonValue] | None = None) -> tuple[Incoming, str]:
        """A request and the limit that rejects it, if one does."""
        self._number += 1
        envelope = builders.preprocess_request(request_id=f"r{self._number}", headers={"x-pointsman-tenant": TENANT})
        raw = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]})
        incoming = Incoming(envelope, parse(envelope.path, raw), read_headers(envelope.headers))
        if limits is not None:
            incoming.write(IDENTITY, {"limits": limits})
        try:
            waiting = pipeline.run(incoming)
            if waiting is not None:
                await waiting
        except Refusal as refusal:
            return incoming, refusal.dropped_reason or refusal.told_code
        return incoming, ""


@pytest.fixture
async def pair(buses: Buses, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr("pointsman_limits.keepers.shared_limiter.GIVE_UP_S", PATIENCE_S)
    store = FakeBucket()
    nodes = {node.keeper.me: node for node in [Node(buses, name, store) for name in "ab"]}
    await buses.meet()
    await eventually(lambda: all(list(each.keeper.ranks.members) == sorted(nodes) for each in nodes.values()))
    await eventually(lambda: all(each.keeper.is_settled for each in nodes.values()))
    keeper = nodes.pop(keeper_of(SHARD, nodes) or "")
    [asking] = nodes.values()
    yield Pair(keeper, asking)
    for node in (keeper, asking):
        node.ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await node.ticking


async def test_limits_with_one_keeper_are_asked_in_one_message(pair: Pair) -> None:
    incoming, dropped = await pair.send(pair.pipeline(MANY, FEW, OPEN))
    assert dropped == ""
    assert pair.keeper.asked == [["many", "few", "open"]]
    assert pair.keeper.open() == ["few", "many", "open"]
    assert [each.limit for each in incoming.charges] == ["many", "few", "open"]
    assert [each.processor for each in incoming.verdicts if each.processor != "identity-headers"] == [
        "many",
        "few",
        "open",
    ]
    assert incoming.answer_headers["x-ratelimit-remaining-requests"].value == "1"
    assert not incoming.answered


@pytest.mark.parametrize("earlier", [False, True], ids=["a keeper of today", "a keeper of an earlier version"])
async def test_a_request_that_a_limit_rejects_is_not_counted_by_those_behind_it(pair: Pair, earlier: bool) -> None:
    pair.keeper.earlier = earlier
    pipeline = pair.pipeline(MANY, FEW, OPEN)
    outcomes = [await pair.send(pipeline) for _ in range(3)]
    assert [dropped for _, dropped in outcomes] == ["", "", "limit few"]
    assert [each.limit for each in outcomes[2][0].charges] == ["many"], "which is released"
    await eventually(lambda: pair.keeper.open() == ["few", "few", "many", "many", "many", "open", "open"])


async def test_a_limit_with_another_keeper_is_asked_in_its_turn(pair: Pair) -> None:
    here = next(
        f"l{n}"
        for n in range(99)
        if pair.asking.keeper.ranks.keeper_of(shard_of(f"limit l{n}")) != pair.keeper.keeper.me
    )
    _, dropped = await pair.send(pair.pipeline(MANY, FEW, {"use": "concurrency-limit", "name": here, "limit": 1}, OPEN))
    assert dropped == ""
    assert pair.keeper.asked == [["many", "few"], ["open"]]


async def test_questions_whose_answer_is_lost_are_asked_again_and_counted_once(pair: Pair) -> None:
    pair.keeper.mute = 1
    _, dropped = await pair.send(pair.pipeline(MANY, FEW, OPEN))
    assert dropped == ""
    assert pair.keeper.asked == [["many", "few", "open"]] * 2
    assert pair.keeper.open() == ["few", "many", "open"]


async def test_questions_of_several_requests_in_one_message_stay_apart(pair: Pair) -> None:
    pipeline = pair.pipeline(FEW, OPEN)
    outcomes = await asyncio.gather(*(pair.send(pipeline) for _ in range(4)))
    assert sorted(dropped for _, dropped in outcomes) == ["", "", "limit few", "limit few"]
    assert pair.keeper.asked == [["few", "open"] * 4]
    assert pair.keeper.open() == ["few", "few", "open", "open"]


async def test_a_limit_whose_claim_is_no_amount_is_asked_in_its_turn_and_says_so(pair: Pair) -> None:
    pipeline = pair.pipeline(MANY, FEW | {"claim": "requests"}, OPEN)
    incoming, dropped = await pair.send(pipeline, {"requests": "many"})
    assert dropped == ""
    assert pair.keeper.asked == [["many"], ["few", "open"]]
    assert incoming.degraded == ["few: claim 'requests' is no amount"]


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ({}, ("few", "open")),
        ({"mode": "shadow"}, ()),
        ({"timeout": "1s"}, ()),
        ({"on_error": "allow"}, ("few", "open")),
    ],
)
def test_a_limit_in_shadow_or_with_a_timeout_is_asked_in_its_turn(
    behind: dict[str, object], expected: tuple[str, ...]
) -> None:
    made = compile_pipeline(load({"preprocessing": [{"use": "identity-headers"}, MANY, FEW | behind, OPEN]}))
    ask_together(made.steps)
    assert _followers(made)["many"] == expected
    assert _followers(made)["open"] == ()


def test_a_limit_that_keeps_what_it_counted_follows_no_other() -> None:
    kept: dict[str, object] = {"use": "infra-request-limit", "name": "kept", "rate": "1/s"}
    plain: dict[str, object] = {"use": "infra-token-limit", "name": "plain", "amount": "1/s"}
    made = compile_pipeline(load({"preprocessing": [plain, kept, plain | {"name": "last"}]}))
    ask_together(made.steps)
    assert _followers(made) == {"plain": (), "kept": ("last",), "last": ()}


def _followers(made: Pipeline) -> dict[str, tuple[str, ...]]:
    limits: list[Limit] = [each for each in made.processors if isinstance(each, Limit)]
    return {limit.name: tuple(each.name for each in limit.followers) for limit in limits}
