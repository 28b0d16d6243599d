"""Several preprocessors count together: each shard by one of them, while replicas come and go."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from itertools import count
from typing import Final

import pytest
from prometheus_client import CollectorRegistry

from pointsman_contracts.limits import (
    SHARDS,
    LimitAsk,
    LimitAsks,
    LimitHandOver,
    LimitKept,
    LimitReleases,
    LimitShard,
    LimitVerdict,
    LimitVerdicts,
    LimitWindow,
)
from pointsman_contracts.message import read_fields
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.subjects import ANY
from pointsman_limits.domain.limits.book import Book
from pointsman_limits.domain.limits.lease import TAKEN_S
from pointsman_limits.domain.limits.sharding import keeper_of
from pointsman_limits.domain.limits.token_cost import TokenCost
from pointsman_limits.keepers.limit_metrics import LimitMetrics
from pointsman_limits.keepers.shard_keeper import ShardKeeper
from pointsman_limits.keepers.shared_limiter import SharedLimiter
from pointsman_plugins.preprocessing import Unavailable
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses
from pointsman_testing.eventually import PATIENCE_S
from pointsman_testing.fake_bucket import FakeBucket

TOKENS: Final = LimitWindow(unit="tokens", amount=1000, period_s=3600)
OPEN: Final = LimitWindow(unit="concurrency", amount=2)
_ASKS: Final = count()
"""Two requests of one name came in different milliseconds."""


def keeper_in(store: FakeBucket, shard: int) -> str:
    """The instance that the snapshot of a shard names."""
    entry = store.entries.get(str(shard))
    return LimitShard.decode(entry.value).keeper if entry else ""


class Node:
    """The limits of one preprocessor."""

    def __init__(self, buses: Buses, instance: str, store: FakeBucket) -> None:
        self.service = buses.make("preprocessor", instance)
        self.registry = CollectorRegistry()
        metrics = LimitMetrics(self.registry)
        self.ahead_s = 0.0
        """Of its clock."""
        self.keeper = ShardKeeper(self.service.bus, self.service.heartbeat, store, metrics, self.clock)
        self.limiter = SharedLimiter(self.service.bus, self.service.heartbeat, self.keeper, metrics, self.clock)
        self.limiter.set_prices({"limit": TokenCost()})
        self.asked: Counter[str] = Counter()
        """Of the messages that it could answer: a busy machine can hold it up for longer than its lease, and then it is
        asked again."""
        me = self.service.process.instance
        self.service.bus.answer(LimitAsks, self._answer, me)
        self.service.bus.answer(LimitHandOver, self._hand_over, me)
        self.service.bus.listen(LimitReleases, self.limiter.receive_release, me)
        self.service.bus.listen(ResponseCompleted, self.limiter.settle_request, ANY)
        self.ticking: asyncio.Task[None] | None = None
        self.silent = False
        """It is stopped."""
        self.lost = False
        """It says that another replica keeps everything."""

    def clock(self) -> float:
        return time.time() + self.ahead_s

    def _answer(self, asks: LimitAsks | LimitAsks) -> bytes:
        if self.silent:
            raise ValueError("the test says so")
        if self.lost:
            return LimitVerdicts(verdicts=(LimitVerdict(outcome="elsewhere"),) * len(asks.asks)).encode()
        answer = self.limiter.answer_peers(asks)
        if any(each.outcome != "elsewhere" for each in LimitVerdicts.decode(answer).verdicts):
            self.asked["messages"] += 1
            self.asked["asks"] += len(asks.asks)
        return answer

    def _hand_over(self, query: LimitHandOver) -> bytes:
        if self.silent:
            raise ValueError("the test says so")
        return self.keeper.hand_over(query)

    def start(self) -> None:
        self.keeper.begin_keeping()
        self.ticking = asyncio.get_running_loop().create_task(self._tick())

    def stop(self) -> None:
        """As by SIGSTOP."""
        self.silent = True
        self.service.heartbeat.stop()
        if self.ticking is not None:
            self.ticking.cancel()

    def go_on(self) -> None:
        """As by SIGCONT."""
        self.silent = False
        self.service.heartbeat.start()
        self.ticking = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.keeper.tick()
            self.limiter.tick()
            await asyncio.sleep(0.02)

    async def ask(self, request_id: str, cost: float = 100, shard: int = 0, **changes: object) -> LimitVerdict:
        fields: dict[str, object] = {
            "edge": "edge-1",
            "request_id": request_id,
            "limit": "limit",
            "shard": shard,
            "windows": (TOKENS,),
            "cost": cost,
            "until_ms": builders.unix_ms(60) + next(_ASKS),
        }
        verdict = self.limiter.count_at_keeper(read_fields(LimitAsk, fields | changes), 0)
        return await verdict if isinstance(verdict, Awaitable) else verdict

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


class World:
    """Preprocessors with one bucket, and an edge that tells how requests ended."""

    def __init__(self, buses: Buses) -> None:
        self.buses = buses
        self.store = FakeBucket()
        self.nodes: dict[str, Node] = {}
        self.edge = buses.make("frontend", "1")
        self._sequence = 0

    async def add(self, *instances: str) -> list[Node]:
        nodes = [Node(self.buses, instance, self.store) for instance in instances]
        await self.buses.meet()
        for node in nodes:
            node.start()
            self.nodes[node.keeper.me] = node
        living = sorted(self.nodes)
        await eventually(lambda: all(list(each.keeper.ranks.members) == living for each in self.nodes.values()))
        await eventually(lambda: all(each.keeper.is_settled for each in self.nodes.values()))
        return nodes

    async def kill(self, node: Node) -> None:
        """As by SIGKILL: nothing is said, the connection ends."""
        del self.nodes[node.keeper.me]
        if node.ticking is not None:
            node.ticking.cancel()
            await asyncio.wait([node.ticking])
        await self.buses.kill(node.service)

    def keeper(self, shard: int = 0) -> Node:
        return self.nodes[keeper_of(shard, self.nodes) or ""]

    def others(self, shard: int = 0) -> list[Node]:
        return [node for node in self.nodes.values() if node is not self.keeper(shard)]

    def complete(
        self, request_id: str, tokens: int | None, edge: str = "edge-1", *, answers: int = 1, output: int = 1
    ) -> None:
        self._sequence += 1
        usage = None if tokens is None else Usage(prompt_tokens=tokens - output, completion_tokens=output)
        self.edge.bus.publish(
            ResponseCompleted(
                request_id=request_id,
                source=edge,
                sequence=self._sequence,
                at_ms=0,
                pool="p",
                status=200,
                outcome="ok",
                usage=usage,
                model="m",
                answers=answers,
            ),
            "p",
        )

    def used(self, shard: int = 0, limit: str = "limit") -> float:
        """Summed over all, so that what is counted twice is seen."""
        books = [node.keeper.find_book(shard) for node in self.nodes.values()]
        return sum(book.used_amount(limit, TOKENS, "", time.time()) for book in books if book is not None)

    async def saved(self) -> None:
        def all_saved() -> bool:
            return not any(book.has_changed for node in self.nodes.values() for book in node.keeper.kept_books())

        await eventually(all_saved)


@pytest.fixture
async def world(buses: Buses, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    # No request of a test gives up because its machine is busy.
    monkeypatch.setattr("pointsman_limits.keepers.shared_limiter.GIVE_UP_S", PATIENCE_S)
    made = World(buses)
    yield made
    for node in made.nodes.values():
        if node.ticking is not None:
            node.ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await node.ticking


async def test_all_count_in_one_place_and_ask_for_many_requests_at_once(world: World) -> None:
    await world.add("a", "b", "c")
    verdicts = await asyncio.gather(
        *(node.ask(f"{node.keeper.me}-{number}") for node in world.nodes.values() for number in range(10))
    )
    assert sorted(each.outcome for each in verdicts) == ["admitted"] * 10 + ["refused"] * 20
    assert world.used() == 1000
    keeper = world.keeper()
    assert keeper.asked["asks"] == 20
    assert keeper.asked["messages"] == 2
    assert sum(node.asked["messages"] for node in world.others()) == 0


async def test_a_single_preprocessor_asks_no_keeper(world: World) -> None:
    [node] = await world.add("a")
    for shard in range(SHARDS):
        assert (await node.ask(f"r{shard}", shard=shard)).outcome == "admitted"
    assert node.asked == {}


async def test_how_long_an_answer_gets_is_learnt_of_each_one_where_a_request_had_several(world: World) -> None:
    [node] = await world.add("a")
    for number in range(70):
        world.complete(f"r{number}", 500, answers=4, output=400)
    await eventually(lambda: node.limiter.lengths.expected_tokens("", "m") is not None)
    assert 100 <= (node.limiter.lengths.expected_tokens("", "m") or 0) <= 120


async def test_the_end_of_a_request_settles_it_wherever_it_is_kept(world: World) -> None:
    await world.add("a", "b")
    for node in world.nodes.values():
        await node.ask(f"used-{node.keeper.me}")
        await node.ask(f"lost-{node.keeper.me}")
    for name in world.nodes:
        world.complete(f"used-{name}", 30)
        world.complete(f"lost-{name}", None)
        world.complete(f"used-{name}", 30)
    await eventually(lambda: world.used() == 60)
    assert world.keeper().metric("pointsman_limit_tokens_total", limit="limit", what="used") == 60
    assert world.keeper().metric("pointsman_limit_tokens_total", limit="limit", what="reserved") == 400


async def test_a_request_that_another_limit_refuses_is_taken_back_from_the_keeper(world: World) -> None:
    await world.add("a", "b")
    for node in world.nodes.values():
        ask = LimitAsk(
            edge="edge-1",
            request_id=node.keeper.me,
            limit="limit",
            shard=0,
            windows=(TOKENS,),
            cost=100,
            until_ms=builders.unix_ms(60),
        )
        verdict = node.limiter.count_at_keeper(ask, 0)
        assert (await verdict if isinstance(verdict, Awaitable) else verdict).outcome == "admitted"
        node.limiter.release_charges([ask], 0)
    await eventually(lambda: world.used() == 0)


@pytest.mark.requirement("LIMIT-1")
async def test_counts_survive_their_keeper_and_are_settled_by_the_next_one(world: World) -> None:
    await world.add("a", "b", "c")
    dying = world.keeper()
    await dying.ask("ended-before")
    await dying.ask("ended-between")
    await dying.ask("ends-after")
    await world.saved()
    world.complete("ended-between", 10)
    await eventually(lambda: world.used() == 210)
    # Its last snapshot doesn't know that the request has ended; the others have heard of it.
    await world.kill(dying)
    assert (await world.others()[0].ask("next")).outcome == "admitted"
    assert world.used() == 310
    world.complete("ends-after", 50)
    world.complete("ended-before", 40)
    await eventually(lambda: world.used() == 200)
    assert (await world.keeper().ask("too-much", 801)).outcome == "refused"
    await eventually(lambda: keeper_in(world.store, 0) == world.keeper().keeper.me)


@pytest.mark.parametrize("dies", [False, True])
async def test_counts_of_a_keeper_whose_clock_was_ahead_hold_no_longer_than_others(world: World, dies: bool) -> None:
    [ahead, _] = await world.add("a", "b")
    ahead.ahead_s = 3600.0
    names = [f"preprocessor-{letter}" for letter in "abc"]
    shard = next(each for each in range(SHARDS) if [str(keeper_of(each, names[:n]))[-1] for n in (2, 3)] == ["a", "c"])
    few = LimitWindow(unit="requests", amount=2, period_s=600, burst=2)
    for name in ("r1", "r2"):
        assert (await ahead.ask(name, 1, shard, limit="few", windows=(few,), open_s=60.0)).outcome == "admitted"
        assert (await ahead.ask(name, 300, shard, open_s=60.0)).outcome == "admitted"
    # Open reservations are no older for it.
    ahead.limiter.tick()
    assert ahead.metric("pointsman_limit_abandoned_total") == 0
    await world.saved()
    if dies:
        await world.kill(ahead)
    else:
        await world.add("c")
    right = world.keeper(shard)
    await eventually(lambda: right.keeper.find_book(shard))
    refused = await right.ask("r3", 1, shard, limit="few", windows=(few,))
    assert refused.retry_s is not None
    assert 200 < refused.retry_s <= 301
    world.complete("r1", 50)
    await eventually(lambda: world.used(shard) == 350)
    book = right.keeper.find_book(shard)
    assert book is not None
    assert book.used_amount("limit", TOKENS, "", time.time() + TOKENS.period_s + TOKENS.period_s / 60) == 0


async def test_a_replica_that_joins_gets_its_shards_as_they_are_and_nothing_is_counted_twice(world: World) -> None:
    [first] = await world.add("a")
    for shard in range(SHARDS):
        await first.ask(f"r{shard}", shard=shard)
    await world.saved()
    await world.add("b", "c")
    for shard in range(SHARDS):
        world.complete(f"r{shard}", 70)
        assert (await first.ask(f"s{shard}", shard=shard)).outcome == "admitted"
    await eventually(lambda: all(world.used(shard) == 170 for shard in range(SHARDS)))
    await eventually(lambda: all(world.keeper(shard).keeper.find_book(shard) for shard in range(SHARDS)))
    assert sum(len(node.keeper.kept_books()) for node in world.nodes.values()) == SHARDS


async def test_a_replica_that_leaves_in_order_takes_nothing_along(world: World) -> None:
    await world.add("a", "b")
    leaving = world.keeper()
    await leaving.ask("r", 100)
    leaving.service.heartbeat.ready = False
    leaving.service.heartbeat.publish_state()
    [staying] = world.others()
    await eventually(lambda: staying.keeper.ranks.members == (staying.keeper.me,))
    assert (await staying.ask("s", 50)).outcome == "admitted"
    await leaving.ask("t", 25)
    await leaving.keeper.close()
    await world.kill(leaving)
    assert world.used() == 175


@pytest.mark.parametrize("learns", ["on the bus", "from the bucket"])
async def test_a_keeper_that_learns_of_a_later_epoch_has_lost_the_shard(world: World, learns: str) -> None:
    await world.add("a", "b")
    keeper, [other] = world.keeper(), world.others()
    await keeper.ask("r", 100)
    await world.saved()
    # As if it had been stopped for a while: the other one has taken over.
    if learns == "on the bus":
        epochs = (99,) + (0,) * (SHARDS - 1)
        other.service.bus.publish(
            LimitKept(keeper="other", run="other", number=1, at=time.time(), epochs=epochs), "other"
        )
    else:
        stolen = Book(0)
        entry = world.store.entries["0"]
        stolen.take_over(LimitShard.decode(entry.value))
        state = stolen.build_snapshot(other.keeper.me, time.time(), 99).encode()
        assert await world.store.replace("0", state, entry.revision) is not None
        await keeper.ask("s", 100)
    await eventually(lambda: keeper.metric("pointsman_limit_shard_moves_total", how="lost") == 1)


async def test_a_keeper_that_was_stopped_admits_nothing_when_it_goes_on(world: World) -> None:
    await world.add("a", "b")
    stopped, [other] = world.keeper(), world.others()
    await stopped.ask("r", 900)
    stopped.ahead_s += 0.5
    assert isinstance(stopped.keeper.book_or_keeper(0, stopped.clock()), str), "its lease has run out"
    stopped.stop()
    await eventually(lambda: other.keeper.find_book(0) is not None)
    assert (await other.ask("s", 100)).outcome == "admitted", "nothing had been saved"
    assert (await other.ask("t", 100)).outcome == "refused"
    stopped.go_on()
    assert (await stopped.ask("u", 100)).outcome == "refused"
    assert stopped.metric("pointsman_limit_shard_moves_total", how="lost") >= 1


async def test_preprocessors_that_were_frozen_together_do_not_count_a_shard_twice(world: World) -> None:
    await world.add("a", "b")
    first, [second] = world.keeper(), world.others()
    await first.ask("r", 900)
    for node in (first, second):
        node.ahead_s += TAKEN_S + 0.1
    second.keeper.ranks.doubt_instance(first.keeper.me)
    second.keeper.tick()
    kept = [isinstance(node.keeper.book_or_keeper(0, node.clock()), Book) for node in (first, second)]
    assert kept == [False, False], "no report has come back yet"
    verdicts = await asyncio.gather(*(node.ask(f"r-{node.keeper.me}", 100) for node in (first, second)))
    assert sorted(each.outcome for each in verdicts) == ["admitted", "refused"]


@pytest.mark.parametrize("alone", [True, False])
async def test_without_the_bus_only_a_preprocessor_that_was_alone_counts_on(
    world: World, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    await world.add(*("a" if alone else "ab"))
    node = world.keeper()
    await node.ask("r", 900)
    monkeypatch.setattr(type(node.service.bus), "connected", property(lambda _: False))
    node.ahead_s += 0.5
    book = node.keeper.book_or_keeper(0, node.clock())
    assert isinstance(book, Book) == alone
    if isinstance(book, Book):
        assert book.used_amount("limit", TOKENS, "", time.time()) == 900


async def test_requests_wait_for_a_keeper_that_is_stopped_until_its_shards_are_taken_from_it(world: World) -> None:
    await world.add("a", "b", "c")
    stopped = world.keeper()
    await stopped.ask("r", 100)
    stopped.stop()
    verdicts = await asyncio.gather(*(node.ask(f"r-{node.keeper.me}", 100) for node in world.others()))
    assert [each.outcome for each in verdicts] == ["admitted", "admitted"]
    assert {round(each.standings[0].remaining) for each in verdicts} == {700, 800}


async def test_while_no_keeper_can_be_asked_a_limit_is_unavailable_and_counts_its_share_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman_limits.keepers.shared_limiter.GIVE_UP_S", 0.05)
    await world.add("a", "b")
    keeper, [other] = world.keeper(), world.others()
    await keeper.ask("r", 100)
    keeper.lost = True
    with pytest.raises(Unavailable):
        await other.ask("r")
    verdict = other.limiter.count_locally(
        LimitAsk(
            edge="e", request_id="r", limit="limit", shard=0, windows=(TOKENS,), cost=400, until_ms=builders.unix_ms(9)
        ),
        0,
    )
    assert verdict.outcome == "admitted"
    assert verdict.standings[0].remaining == 100, "half of the limit, less the request"
    assert other.metric("pointsman_limit_requests_total", limit="limit", outcome="unavailable") == 1


async def test_without_a_bucket_everything_is_counted_all_the_same(world: World) -> None:
    world.store.broken = True
    [node] = await world.add("a")
    for _ in range(10):
        assert (await node.ask("r")).outcome == "admitted"
    assert (await node.ask("r")).outcome == "refused"
    await eventually(lambda: node.metric("pointsman_limit_unsaved_total") > 1)
    world.store.broken = False
    await eventually(lambda: keeper_in(world.store, 0) == node.keeper.me)


@pytest.mark.requirement("LIMIT-1")
async def test_nothing_is_counted_before_the_stored_counts_are_read(world: World) -> None:
    [first] = await world.add("a")
    assert (await first.ask("r", 900)).outcome == "admitted"
    await first.keeper.close()
    await world.kill(first)
    world.store.listing = False
    second = Node(world.buses, "b", world.store)
    world.nodes[second.keeper.me] = second
    said: list[LimitKept] = []
    second.service.bus.listen(LimitKept, said.append, ANY)
    await world.buses.meet()
    second.start()
    asking = asyncio.ensure_future(second.ask("s", 200))
    await eventually(lambda: said)
    # By its clock it has listened for long enough to claim every shard.
    second.ahead_s += TAKEN_S
    before = len(said)
    await eventually(lambda: len(said) > before + 3)
    assert not any(any(each.epochs) for each in said)
    assert not second.keeper.kept_books()
    world.store.list_now()
    assert (await asking).outcome == "refused"
    assert (await second.ask("t", 100)).outcome == "admitted"


@pytest.mark.requirement("LIMIT-1")
async def test_stored_counts_that_couldnt_be_read_in_time_are_not_overwritten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = await world.add("a")
    assert (await first.ask("r", 900)).outcome == "admitted"
    await first.keeper.close()
    await world.kill(first)
    world.store.listing = False
    monkeypatch.setattr("pointsman_limits.keepers.shard_snapshots.LISTED_S", 0.0)
    [second] = await world.add("b")
    assert (await second.ask("s", 300)).outcome == "admitted", "counts began at nothing"
    await eventually(lambda: second.metric("pointsman_limit_shard_moves_total", how="lost") == 1)
    # Of the others it learns when they are listed, before a request needs them.
    world.store.list_now()
    assert all(book.granted for book in second.keeper.kept_books())
    await eventually(lambda: second.keeper.is_settled)
    assert (await second.ask("t", 200)).outcome == "refused"
    assert (await second.ask("u", 100)).outcome == "admitted"


async def test_scopes_without_room_for_a_count_of_their_own_are_counted_and_logged_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pointsman_limits.domain.limits.book.MOST_COUNTERS", 1)
    nodes = await world.add("a", "b")
    for scope in ("own", "shared", "shared", "shared too"):
        for node in nodes:
            await node.ask(f"{node.keeper.me}-{scope}", 1, scope=scope)
    own = world.keeper()
    assert own.metric("pointsman_limit_overflowed_total", limit="limit") == 6
    assert own.metric("pointsman_limit_requests_total", limit="limit", outcome="admitted") == 4
    assert caplog.text.count("limit_scopes_shared") == 1


async def test_the_open_reservations_of_a_dead_edge_are_returned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman_limits.keepers.shared_limiter.EDGE_GONE_S", 0.1)
    [node] = await world.add("a")
    me = world.edge.process.instance
    for number in range(2):
        assert (await node.ask(f"r{number}", 1, windows=(OPEN,), edge=me)).outcome == "admitted"
    assert (await node.ask("s", 1, windows=(OPEN,), edge="another")).outcome == "refused"
    await world.edge.close()

    async def admitted() -> bool:
        return (await node.ask("t", 1, windows=(OPEN,), edge="another")).outcome == "admitted"

    await eventually(admitted)
