"""The spending of budgets follows the stream of ends, whichever replica keeps the shard or is killed."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from pointsman_contracts.batch import make_batch_id
from pointsman_contracts.cascade import AnswerConfidence
from pointsman_contracts.identity import Identity
from pointsman_contracts.limits import SHARDS, BudgetAsk, BudgetReached, BudgetWindow, LimitAsk, LimitVerdict
from pointsman_contracts.response import ResponseCompleted, UnusedAnswer, Usage
from pointsman_contracts.subjects import ANY
from pointsman_contracts.target import Target
from pointsman_limits.domain.budgets.charging import End
from pointsman_limits.domain.budgets.scope import BudgetScopes
from pointsman_limits.domain.budgets.spending import spending
from pointsman_limits.domain.limits.book import Book
from pointsman_limits.keepers.budgets import Budgets
from pointsman_limits.keepers.limit_metrics import LimitMetrics
from pointsman_limits.keepers.shard_keeper import ShardKeeper
from pointsman_limits.keepers.shared_limiter import SharedLimiter
from pointsman_plugins.preprocessing import Unavailable
from pointsman_testing import builders, eventually
from pointsman_testing.buses import Buses
from pointsman_testing.eventually import PATIENCE_S
from pointsman_testing.fake_bucket import FakeBucket

BUDGET: Final = "monthly"
AMOUNT: Final = 1_000_000
SCOPES: Final = BudgetScopes(BUDGET, ("tenant",))


@dataclass
class Stream:
    """Ends as a server keeps them."""

    made: str = "first"
    bodies: list[bytes] = field(default_factory=list[bytes])
    broken: bool = False
    batch: int = 7

    async def find_stream(self) -> tuple[str, int]:
        await asyncio.sleep(0)
        if self.broken:
            raise TimeoutError
        return self.made, len(self.bodies)

    async def read_after(self, sequence: int) -> tuple[list[End], int]:
        await asyncio.sleep(0)
        if self.broken:
            raise TimeoutError
        ends = [End(place, body) for place, body in enumerate(self.bodies, start=1) if place > sequence]
        return ends[: self.batch], max(0, len(ends) - self.batch)

    def end(self, request_id: str, cost: int | None, tenant: str = "acme", used: int = 1, batch: str = "") -> None:
        event = ResponseCompleted(
            request_id=request_id,
            source="edge-1",
            sequence=len(self.bodies) + 1,
            at_ms=builders.unix_ms(),
            pool="p",
            status=200,
            outcome="ok",
            usage=Usage(prompt_tokens=used),
            identity=Identity(tenant=tenant, batch=batch),
            served="m",
            cost_nanos=cost,
        )
        self.bodies.append(event.encode())


class Node:
    """The budgets of one preprocessor."""

    def __init__(self, buses: Buses, instance: str, store: FakeBucket, stream: Stream) -> None:
        self.buses = buses
        self.service = buses.make("preprocessor", instance)
        self.registry = CollectorRegistry()
        metrics = LimitMetrics(self.registry)
        self.keeper = ShardKeeper(self.service.bus, self.service.heartbeat, store, metrics, time.time)
        self.limiter = SharedLimiter(self.service.bus, self.service.heartbeat, self.keeper, metrics, time.time)
        self.budgets = Budgets(self.service.bus, stream, self.keeper, metrics, time.time)
        self.limiter.spending_missing = lambda: self.budgets.missing
        self.budgets.set_budgets({BUDGET: SCOPES})
        self.reached: list[BudgetReached] = []
        self.service.bus.listen(BudgetReached, self.reached.append, ANY)
        self.turning: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.buses.meet()
        self.keeper.begin_keeping()
        self.turning = asyncio.create_task(self._turn())
        await self.keeper.wait_until_ready()
        await eventually(lambda: self.keeper.is_settled)

    async def kill(self) -> None:
        assert self.turning is not None
        self.turning.cancel()
        await asyncio.wait([self.turning])
        await self.buses.kill(self.service)

    async def ask(self, request_id: str, cost: int = 100, tenant: str = "acme", more: int = 0) -> LimitVerdict:
        scope, shard = SCOPES.values_of({"tenant": tenant}, "")
        verdict = self.limiter.count_at_keeper(
            LimitAsk(
                edge="edge-1",
                request_id=request_id,
                limit=BUDGET,
                shard=shard,
                scope=scope,
                windows=(),
                until_ms=builders.unix_ms(60),
                open_s=60,
                budget=BudgetAsk(
                    windows=(BudgetWindow(amount=AMOUNT, days=None, soft=AMOUNT // 2),),
                    expected=cost,
                    at_most=cost + more,
                ),
            ),
            time.time(),
        )
        return verdict if isinstance(verdict, LimitVerdict) else await verdict

    def spent(self, tenant: str = "acme") -> tuple[int, int]:
        scope, shard = SCOPES.values_of({"tenant": tenant}, "")
        book = self.keeper.find_book(shard)
        return (0, 0) if book is None else book.budgets.spent_and_reserved(BUDGET, scope, None, time.time())

    async def _turn(self) -> None:
        while True:
            self.keeper.tick()
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request of a test gives up because its machine is busy."""
    monkeypatch.setattr("pointsman_limits.keepers.shared_limiter.GIVE_UP_S", PATIENCE_S)


@pytest.mark.requirement("BUDGET-1")
async def test_a_killed_keeper_takes_no_spending_along_and_none_is_spent_twice(buses: Buses) -> None:
    store, stream = FakeBucket(), Stream()
    first = Node(buses, "p-1", store, stream)
    await first.start()
    await first.budgets.read()
    for number in range(20):
        assert (await first.ask(str(number))).outcome == "admitted"
    for number in range(10):
        stream.end(str(number), 50)
    batch = make_batch_id("batch_", 1000, "x")
    stream.end(f"{batch}-1-1", 3, batch=batch)
    await first.budgets.read()
    assert first.spent() == (503, 1000)
    await eventually(lambda: not any(book.has_changed for book in first.keeper.kept_books()))
    # Requests that end from here on aren't in a snapshot, nor are new ones.
    for number in range(10, 15):
        stream.end(str(number), 50)
    await first.kill()
    stream.end("of nobody", 7)
    stream.end(f"{batch}-1-1", 3, batch=batch)  # its answer was lost
    second = Node(buses, "p-2", store, stream)
    await second.start()
    await second.budgets.read()
    assert second.spent() == (760, 500)
    await second.budgets.read()
    assert second.spent() == (760, 500), "read again, nothing new"
    await second.kill()


@pytest.mark.requirement("BUDGET-1")
@pytest.mark.parametrize("saved", ["never", "without a budget"])
async def test_the_spending_of_a_keeper_killed_before_its_first_snapshot_is_read_again(
    buses: Buses, saved: str
) -> None:
    store, stream = FakeBucket(), Stream()
    stream.end("before any budget", 1)
    if saved == "without a budget":
        # As by a keeper of limits alone, which reads no ends: its snapshot names no place in the stream.
        for shard in range(SHARDS):
            assert await store.replace(str(shard), Book(shard).build_snapshot("", time.time()).encode(), 0)
    first = Node(buses, "p-1", store, stream)
    await first.start()
    await first.budgets.read()
    assert (await first.ask("0", AMOUNT)).outcome == "admitted"
    # From here on it doesn't get to write, and is killed.
    store.broken = True
    stream.end("0", AMOUNT)
    await first.budgets.read()
    assert (await first.ask("1")).outcome == "refused"
    await first.kill()
    store.broken = False
    second = Node(buses, "p-2", store, stream)
    await second.start()
    await second.budgets.read()
    assert (await second.ask("2")).outcome == "refused"
    assert second.spent() == (AMOUNT, 0)
    await second.kill()


async def test_without_a_saved_place_nothing_is_admitted_that_costs_money(
    buses: Buses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman_limits.keepers.shared_limiter.GIVE_UP_S", 0.02)
    store = FakeBucket()
    store.broken = True
    node = Node(buses, "p-1", store, Stream())
    await node.start()
    await node.budgets.read()
    with pytest.raises(Unavailable, match="can't be saved yet"):
        await node.ask("a")
    store.broken = False
    await eventually(lambda: all(book.budgets.current for book in node.keeper.kept_books()))
    assert (await node.ask("a")).outcome == "admitted"
    store.broken = True
    assert (await node.ask("b")).outcome == "admitted", "later writes may fail: what is spent since is read again"
    await node.kill()


@pytest.mark.requirement("BUDGET-2")
async def test_a_thousand_requests_at_once_exceed_a_budget_by_at_most_one_error(buses: Buses) -> None:
    stream = Stream(batch=512)
    node = Node(buses, "p-1", FakeBucket(), stream)
    await node.start()
    await node.budgets.read()

    async def ask(name: str) -> LimitVerdict:
        while True:
            with suppress(Unavailable):  # on a busy machine a thousand aren't answered in the time that each is given
                return await node.ask(name, 4_000, more=6_000)

    async with asyncio.timeout(60):
        verdicts = await asyncio.gather(*[ask(str(number)) for number in range(1000)])
    admitted = [str(number) for number, verdict in enumerate(verdicts) if verdict.outcome == "admitted"]
    assert 0 < len(admitted) < 1000
    for name in admitted:
        stream.end(name, 10_000)
    await node.budgets.read()
    spent, reserved = node.spent()
    assert (spent, reserved) == (len(admitted) * 10_000, 0)
    assert AMOUNT - 10_000 < spent <= AMOUNT + 6_000
    await node.kill()


async def test_a_reached_level_is_published_once(buses: Buses) -> None:
    stream = Stream()
    node = Node(buses, "p-1", FakeBucket(), stream)
    await node.start()
    await node.budgets.read()
    await node.ask("0")
    for number in range(3):
        stream.end(str(number), 400_000)
        await node.budgets.read()
    await eventually(lambda: len(node.reached) == 2)
    assert [(each.level, each.scope, each.amount_nanos) for each in node.reached] == [
        ("soft", {"tenant": "acme"}, AMOUNT // 2),
        ("hard", {"tenant": "acme"}, AMOUNT),
    ]
    assert node.registry.get_sample_value("pointsman_budget_reached_total", {"budget": BUDGET, "level": "hard"}) == 1
    await node.kill()


async def test_without_the_stream_nothing_is_admitted_that_costs_money(buses: Buses) -> None:
    stream = Stream(broken=True)
    node = Node(buses, "p-1", FakeBucket(), stream)
    await node.start()
    with pytest.raises(Exception, match="the stream of events"):
        await node.ask("a")
    stream.broken = False
    await node.budgets.read()
    assert (await node.ask("a")).outcome == "admitted"
    await node.kill()


async def test_a_stream_that_was_made_anew_is_read_from_its_beginning(buses: Buses) -> None:
    stream = Stream()
    node = Node(buses, "p-1", FakeBucket(), stream)
    await node.start()
    await node.budgets.read()
    await node.ask("a")
    stream.end("a", 5)
    await node.budgets.read()
    stream.made, stream.bodies, stream.broken = "second", [], True
    with pytest.raises(TimeoutError):
        await node.budgets.read()
    stream.broken = False
    stream.end("b", 6)
    await node.budgets.read()
    assert node.spent()[0] == 11
    await node.kill()


async def test_an_end_that_the_stream_has_twice_is_spent_once(buses: Buses) -> None:
    stream = Stream()
    node = Node(buses, "p-1", FakeBucket(), stream)
    await node.start()
    await node.budgets.read()
    await node.ask("a")
    stream.end("a", 5)
    await node.budgets.read()
    stream.end("b", 6)
    stream.bodies.append(stream.bodies[0])
    await node.budgets.read()
    assert node.spent()[0] == 11
    await node.kill()


async def test_models_without_a_price_are_counted_and_named(buses: Buses) -> None:
    stream = Stream()
    node = Node(buses, "p-1", FakeBucket(), stream)
    await node.start()
    await node.budgets.read()
    stream.end("a", None)
    stream.end("b", None, used=0)
    await node.budgets.read()
    assert node.registry.get_sample_value("pointsman_budget_unpriced_total", {"model": "m"}) == 1
    await node.kill()


def test_each_answer_of_a_cascade_is_spent() -> None:
    unused = UnusedAnswer(
        target=Target(model="tiny", pool="p"), worker="w", judged=AnswerConfidence(verdict="unconfident"),
        usage=Usage(prompt_tokens=1), cost_nanos=7,
    )  # fmt: skip
    end = ResponseCompleted(
        request_id="r", source="edge-1", sequence=1, at_ms=0, pool="p", status=200, outcome="ok", cost_nanos=100,
        unused=(unused, replace(unused, cost_nanos=None), replace(unused, cost_nanos=3)),
    )  # fmt: skip
    assert (spending(end.encode()).amount, spending(end.encode()).used) == (110, True)
    unpriced = replace(end, cost_nanos=None, unused=(replace(unused, cost_nanos=None),))
    assert (spending(unpriced.encode()).amount, spending(unpriced.encode()).used) == (None, True)
