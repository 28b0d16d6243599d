"""Limits that all preprocessors count together: here for a shard that is kept here, otherwise by asking its keeper."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from pointsman_contracts.limits import (
    LimitAsk,
    LimitAsks,
    LimitRelease,
    LimitReleases,
    LimitVerdict,
    LimitVerdicts,
)
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.services import EDGES
from pointsman_journey.heartbeat import Heartbeat
from pointsman_limits.domain.limits.asking import KeeperSearch, give_verdicts, part_of_window, put_in_order
from pointsman_limits.domain.limits.book import MOST_COUNTERS, Book
from pointsman_limits.domain.limits.limiter import Elsewhere, Limiter
from pointsman_limits.domain.limits.settling import Settlement, Settlements
from pointsman_limits.domain.limits.token_cost import TokenCost
from pointsman_limits.keepers.keeper_questions import KeeperQuestions
from pointsman_limits.keepers.limit_metrics import LimitMetrics
from pointsman_limits.keepers.shard_keeper import ShardKeeper
from pointsman_plugins.preprocessing import Answered, Unavailable
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, NoListener, NoReply
from pointsman_runtime.telling.logs import Log

GIVE_UP_S: Final = 0.8
"""How long a request waits for a keeper. Its edge sends it again after 0.6 s, and waits for 0.36 s more."""
EDGE_GONE_S: Final = 5.0
"""An edge that was silent for this long is dead, and its requests with it."""

_log = Log("limits")


class SharedLimiter(Limiter):
    """One of a process. `clock` as that of the keeper."""

    def __init__(
        self, bus: Bus, heartbeat: Heartbeat, keeper: ShardKeeper, metrics: LimitMetrics, clock: Callable[[], float]
    ) -> None:
        self._settlements: Final = Settlements()
        self.lengths = self._settlements.lengths
        self.spending_missing: Callable[[], str | None] = _nothing_missing
        """Why spending on budgets isn't known; None when it is."""
        self.read_spending: Callable[[], None] = _nothing
        self.ends_known: Callable[[], bool] = _never
        """Whether every event of the stream was read."""
        self._bus: Final = bus
        self._heartbeat: Final = heartbeat
        self._keeper: Final = keeper
        self._metrics: Final = metrics
        self._clock: Final = clock
        self._alone: Final = Book(-1)
        self._questions: Final = KeeperQuestions(bus)
        self._silent: Final[dict[str, float]] = {}
        self._overflowed: Final[set[str]] = set()
        keeper.on_taken = self._taken

    def set_prices(self, prices: Mapping[str, TokenCost]) -> None:
        """Replace the token limits, by name."""
        self._settlements.prices = prices

    def count_at_keeper(self, ask: LimitAsk, at: float) -> LimitVerdict | Elsewhere:
        del at
        verdict = self._own(ask)
        if verdict.outcome != "elsewhere":
            self._count_decision(ask, verdict.outcome)
            return verdict
        if ask.budget is not None and (missing := self.spending_missing()) is not None:
            raise self._unavailable(ask, missing)
        return Elsewhere(partial(self._elsewhere, ask, verdict.keeper))

    def count_locally(self, ask: LimitAsk, at: float) -> LimitVerdict:
        del at
        share = 1 / self._keeper.ranks.known_preprocessors
        windows = tuple(part_of_window(window, share) for window in ask.windows)
        before = self._alone.overflowed
        verdict = self._alone.ask_limit(replace(ask, windows=windows), self._clock())
        if self._alone.overflowed > before:
            self._overflow(self._alone, ask.limit)
        self._count_decision(ask, f"alone_{verdict.outcome}")
        return verdict

    def release_charges(self, asks: Iterable[LimitAsk], at: float) -> None:
        del at
        now = self._clock()
        elsewhere: dict[str, list[LimitRelease]] = {}
        for ask in asks:
            if ask.kept:
                continue
            book = self._keeper.find_book(ask.shard)
            if self._alone.release_charge(ask.edge, ask.request_id, ask.limit, now):
                continue
            if book is not None:
                book.release_charge(ask.edge, ask.request_id, ask.limit, now)
                continue
            each = LimitRelease(edge=ask.edge, request_id=ask.request_id, limit=ask.limit, shard=ask.shard)
            elsewhere.setdefault(self._keeper.ranks.keeper_of(ask.shard), []).append(each)
        for keeper, releases in elsewhere.items():
            self._bus.publish(LimitReleases(releases=tuple(releases)), keeper)

    def _own(self, ask: LimitAsk) -> LimitVerdict:
        """The verdict, if it is proved that the count is kept here; otherwise its keeper."""
        now = self._clock()
        book = self._keeper.book_or_keeper(ask.shard, now)
        if isinstance(book, str):
            return LimitVerdict(outcome="elsewhere", keeper=book)
        if ask.budget is not None and not book.budgets.current:
            # Its spending before the takeover is still being read, or its first place in the stream saved.
            if book.budgets.is_unread:
                self.read_spending()
            return LimitVerdict(outcome="elsewhere", keeper=self._keeper.me)
        before = book.overflowed
        verdict = self._keeper.count(book, ask, now)
        if book.overflowed > before:
            self._overflow(book, ask.limit)
        return verdict

    def _overflow(self, book: Book, limit: str) -> None:
        self._metrics.overflowed.labels(limit).inc()
        if limit not in self._overflowed:
            self._overflowed.add(limit)
            _log.warning("limit_scopes_shared", limit=limit, shard=book.shard, counters=MOST_COUNTERS)

    async def _elsewhere(self, ask: LimitAsk, keeper: str, later: Iterable[LimitAsk]) -> list[Answered]:
        """Ask the keeper of the count, until one answers."""
        began = time.perf_counter()
        search = KeeperSearch(self._keeper.me, keeper)
        asks = self._with_same_keeper(ask, keeper, later)
        while True:
            keeper = search.keeper
            try:
                verdicts = (
                    give_verdicts(asks, self._own)
                    if keeper == self._keeper.me
                    else await self._questions.ask_keeper(asks, keeper)
                )
            except NoListener:
                self._keeper.ranks.doubt_instance(keeper)
                verdicts = give_verdicts(asks, self._own)
            except NoReply:
                self._keeper.ranks.suspect_instance(keeper)
                # It may have died with the question. If it has counted the request, it doesn't count it again.
                asks = tuple([replace(each, attempt=each.attempt + 1) for each in asks])
                verdicts = give_verdicts(asks, self._own)
            except (BusError, MalformedMessage) as error:
                raise self._unavailable(
                    ask, f"the keeper of its count can't be asked ({type(error).__name__})"
                ) from error
            answers, early = put_in_order(asks, verdicts)
            if early:
                self.release_charges(early, 0.0)
            verdict = answers[0].verdict
            if verdict.outcome != "elsewhere":
                if not ask.dry_run:
                    self._metrics.asked.observe(time.perf_counter() - began)
                for each in answers:
                    if each.verdict.outcome != "elsewhere":
                        self._count_decision(each.ask, each.verdict.outcome)
                return answers
            if time.perf_counter() - began > GIVE_UP_S:
                raise self._unavailable(ask, self._pending(ask))
            ranks = self._keeper.ranks
            pause_s = search.follow_verdict(
                verdict.keeper, ranks.keeper_of(ask.shard), doubted=ranks.was_doubted(verdict.keeper)
            )
            if pause_s is not None:
                await asyncio.sleep(pause_s)

    def _with_same_keeper(self, ask: LimitAsk, keeper: str, later: Iterable[LimitAsk]) -> tuple[LimitAsk, ...]:
        """The question, and those right behind it whose counts the same preprocessor keeps."""
        asks = [replace(ask, follows=None) if ask.follows else ask]
        if keeper != self._keeper.me:
            now = self._clock()
            for each in later:
                if self._keeper.book_or_keeper(each.shard, now) != keeper:
                    break
                asks.append(replace(each, follows=True))
        return tuple(asks)

    def _pending(self, ask: LimitAsk) -> str:
        """A question that no keeper answers."""
        book = self._keeper.book_or_keeper(ask.shard, self._clock())
        if isinstance(book, str) or ask.budget is None:
            return "no preprocessor can prove that it keeps its count"
        if book.budgets.is_unread:
            return "what was spent can't be read yet"
        return "the place in the stream of events from which it counts can't be saved yet"

    def _unavailable(self, ask: LimitAsk, why: str) -> Unavailable:
        self._count_decision(ask, "unavailable")
        return Unavailable(why)

    def answer_peers(self, asks: LimitAsks) -> bytes:
        """Answer peers' questions from the counts kept here."""
        verdicts = give_verdicts(asks.asks, self._own)
        for verdict in verdicts:
            if verdict.keeper:
                self._keeper.ranks.look_after(verdict.keeper)
        return LimitVerdicts(verdicts=verdicts).encode()

    def receive_release(self, message: LimitReleases) -> None:
        """Release peers' requests that were rejected later."""
        now = self._clock()
        for each in message.releases:
            book = self._keeper.find_book(each.shard)
            if book is not None:
                book.release_charge(each.edge, each.request_id, each.limit, now)

    def settle_request(self, event: ResponseCompleted) -> None:
        """A request has ended: settle its usage."""
        books = (*self._keeper.kept_books(), self._alone)
        self._count_settled(self._settlements.settle_request(books, event, self._clock()))

    def tick(self) -> None:
        """Call about once a second: end requests that can't be open any more."""
        now = self._clock()
        for book in (*self._keeper.kept_books(), self._alone):
            count = book.release_abandoned(self._is_gone, now)
            if self.ends_known():
                count += book.budgets.release_abandoned(self._is_gone, now)
            if count:
                self._metrics.abandoned.inc(count)

    def _count_decision(self, ask: LimitAsk, outcome: str) -> None:
        if not ask.dry_run:
            self._metrics.count_decision(ask.limit, outcome)

    def _count_settled(self, settlement: Settlement) -> None:
        for each in settlement.settled:
            self._metrics.count_settled(each.limit, each.reserved, each.actual)
        for limit in settlement.miscounted:
            self._metrics.miscounted.labels(limit).inc()

    def _taken(self, book: Book, since: float) -> None:
        for settlement in self._settlements.settle_missed(book, since):
            self._count_settled(settlement)

    def _is_gone(self, edge: str) -> bool:
        """Whether the edge was known, and has been silent for a while."""
        table, now = self._heartbeat.table, asyncio.get_running_loop().time()
        known = [
            lives for service in EDGES for name, lives in table.list_instances(service, now).items() if name == edge
        ]
        if not known or any(known) or not self._bus.connected:
            self._silent.pop(edge, None)
            return False
        return now - self._silent.setdefault(edge, now) >= EDGE_GONE_S


def _nothing_missing() -> str | None:
    return None


def _nothing() -> None:
    return


def _never() -> bool:
    return False
