"""Limits that all preprocessors count together: here for a shard that is kept here, otherwise by asking its keeper."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import ceil
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from pointsman_contracts.limits import (
    LimitAsk,
    LimitAsks,
    LimitRelease,
    LimitReleases,
    LimitVerdict,
    LimitVerdicts,
    LimitWindow,
)
from pointsman_contracts.message import MalformedMessage
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_contracts.services import EDGES
from pointsman_journey.heartbeat import Heartbeat
from pointsman_limits.domain.limits.book import MOST_COUNTERS, Book
from pointsman_limits.domain.limits.limiter import Elsewhere, Limiter
from pointsman_limits.domain.limits.output_lengths import OutputLengths
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
MOVING_S: Final = 0.004
"""The pauses grow by this while a shard is being handed over."""
LONGEST_PAUSE_S: Final = 0.03
LATELY_S: Final = 5.0
"""How long an ended request is remembered, for shards that are taken over."""
SLACK_S: Final = 0.2
"""Maximum difference between two preprocessors' clocks, and maximum delay of an event."""
EDGE_GONE_S: Final = 5.0
"""An edge that was silent for this long is dead, and its requests with it."""

_OPEN: Final = LimitVerdict(outcome="elsewhere")
"""The verdict about a question that isn't asked yet: the one before it wasn't admitted."""
_charges_of: Final = attrgetter("charges")
_log = Log("limits")


class SharedLimiter(Limiter):
    """One of a process. `clock` as that of the keeper."""

    def __init__(
        self, bus: Bus, heartbeat: Heartbeat, keeper: ShardKeeper, metrics: LimitMetrics, clock: Callable[[], float]
    ) -> None:
        self.lengths = OutputLengths()
        self.prices: Mapping[str, TokenCost] = {}
        """The token limits, by name."""
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
        self._ended: Final[deque[tuple[float, ResponseCompleted]]] = deque()
        """The requests that ended lately, with the time of each."""
        self._silent: Final[dict[str, float]] = {}
        self._unpriced: Final = TokenCost()
        self._overflowed: Final[set[str]] = set()
        keeper.on_taken = self._taken

    def count_at_keeper(self, ask: LimitAsk, at: float) -> LimitVerdict | Elsewhere:
        del at
        verdict = self._own(ask)
        if verdict.outcome != "elsewhere":
            self._metrics.count_decision(ask.limit, verdict.outcome)
            return verdict
        if ask.budget is not None and (missing := self.spending_missing()) is not None:
            raise self._unavailable(ask, missing)
        return Elsewhere(partial(self._elsewhere, ask, verdict.keeper))

    def count_locally(self, ask: LimitAsk, at: float) -> LimitVerdict:
        del at
        share = 1 / self._keeper.ranks.known_preprocessors
        windows = tuple(_part(window, share) for window in ask.windows)
        before = self._alone.overflowed
        verdict = self._alone.ask_limit(replace(ask, windows=windows), self._clock())
        if self._alone.overflowed > before:
            self._overflow(self._alone, ask.limit)
        self._metrics.count_decision(ask.limit, f"alone_{verdict.outcome}")
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
        hops, pause_s = 0, 0.0
        asks = self._with_same_keeper(ask, keeper, later)
        while True:
            try:
                verdicts = (
                    self._verdicts(asks)
                    if keeper == self._keeper.me
                    else await self._questions.ask_keeper(asks, keeper)
                )
            except NoListener:
                self._keeper.ranks.doubt_instance(keeper)
                verdicts = self._verdicts(asks)
            except NoReply:
                self._keeper.ranks.suspect_instance(keeper)
                # It may have died with the question. If it has counted the request, it doesn't count it again.
                asks = tuple([replace(each, attempt=each.attempt + 1) for each in asks])
                verdicts = self._verdicts(asks)
            except (BusError, MalformedMessage) as error:
                raise self._unavailable(
                    ask, f"the keeper of its count can't be asked ({type(error).__name__})"
                ) from error
            answers = self._in_order(asks, verdicts)
            verdict = answers[0].verdict
            if verdict.outcome != "elsewhere":
                self._metrics.asked.observe(time.perf_counter() - began)
                for each in answers:
                    if each.verdict.outcome != "elsewhere":
                        self._metrics.count_decision(each.ask.limit, each.verdict.outcome)
                return answers
            if time.perf_counter() - began > GIVE_UP_S:
                raise self._unavailable(ask, self._pending(ask))
            before, keeper = keeper, verdict.keeper
            if not keeper or keeper == self._keeper.me or self._keeper.ranks.was_doubted(keeper):
                keeper = self._keeper.ranks.keeper_of(ask.shard)
            hops += 1
            if hops > 1 or keeper in (self._keeper.me, before):
                # It is being handed over, or about to be proved.
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s + MOVING_S, LONGEST_PAUSE_S)

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

    def _verdicts(self, asks: Iterable[LimitAsk]) -> tuple[LimitVerdict, ...]:
        """The verdicts about counts that are kept here."""
        verdicts: list[LimitVerdict] = []
        admitted = True
        for ask in asks:
            verdict = self._own(ask) if admitted or not ask.follows else _OPEN
            admitted = verdict.outcome == "admitted"
            verdicts.append(verdict)
        return tuple(verdicts)

    def _in_order(self, asks: tuple[LimitAsk, ...], verdicts: Iterable[LimitVerdict]) -> list[Answered]:
        """The answers to questions of which each one follows the one before it. A keeper of an earlier version counts a
        request that the limit before didn't admit: it is released."""
        answers: list[Answered] = []
        early: list[LimitAsk] = []
        admitted = True
        for ask, given in zip(asks, verdicts, strict=True):
            verdict = given
            if not admitted:
                verdict = _OPEN
                if given.outcome == "admitted":
                    early.append(ask)
            admitted = verdict.outcome == "admitted"
            answers.append(Answered(ask, verdict))
        if early:
            self.release_charges(early, 0.0)
        return answers

    def _pending(self, ask: LimitAsk) -> str:
        """A question that no keeper answers."""
        book = self._keeper.book_or_keeper(ask.shard, self._clock())
        if isinstance(book, str) or ask.budget is None:
            return "no preprocessor can prove that it keeps its count"
        if book.budgets.is_unread:
            return "what was spent can't be read yet"
        return "the place in the stream of events from which it counts can't be saved yet"

    def _unavailable(self, ask: LimitAsk, why: str) -> Unavailable:
        self._metrics.count_decision(ask.limit, "unavailable")
        return Unavailable(why)

    def answer_peers(self, asks: LimitAsks) -> bytes:
        """Answer peers' questions from the counts kept here."""
        verdicts = self._verdicts(asks.asks)
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
        now = self._clock()
        usage = event.usage
        self._ended.append((now, event))
        while self._ended[0][0] < now - LATELY_S:
            self._ended.popleft()
        if usage is not None and usage.completion_tokens and not usage.estimated:
            tenant = event.identity.tenant if event.identity is not None else ""
            tokens = ceil(usage.completion_tokens / event.answers)
            names = (event.model,) if event.model == event.served else (event.model, event.served)
            for name in names:
                if name is not None:
                    # Limits that count for all tenants use the answer lengths of all tenants.
                    self.lengths.learn_length("", name, tokens)
                    if tenant:
                        self.lengths.learn_length(tenant, name, tokens)
        self._settle((*self._keeper.kept_books(), self._alone), event, now)

    def tick(self) -> None:
        """Call about once a second: end requests that can't be open any more."""
        now = self._clock()
        for book in (*self._keeper.kept_books(), self._alone):
            count = book.release_abandoned(self._is_gone, now)
            if self.ends_known():
                count += book.budgets.release_abandoned(self._is_gone, now)
            if count:
                self._metrics.abandoned.inc(count)

    def _settle(self, books: Iterable[Book], end: ResponseCompleted, at: float) -> None:
        request = end.source, end.request_id
        # Few of them have any: shards are many more than the tenants whose requests are open.
        for book in filter(_charges_of, books):
            if request in book.charges:
                for settled in book.settle_request(request, partial(self._cost, end), at):
                    if settled.limit in self.prices:
                        self._metrics.count_settled(settled.limit, settled.reserved, settled.actual)

    def _cost(self, end: ResponseCompleted, limit: str) -> float | None:
        """The cost of an ended request for one limit; None without usage."""
        usage = end.usage
        if end.unused:
            costs = [self._cost_of(each.usage, each.served or each.target.model, limit) for each in end.unused]
            if usage is not None:
                costs.append(self._cost_of(usage, _model_of(end), limit))
            known = [cost for cost in costs if cost is not None]
            return sum(known) if known else None
        return None if usage is None else self._cost_of(usage, _model_of(end), limit)

    def _cost_of(self, usage: Usage | None, model: str, limit: str) -> float | None:
        if usage is None:
            return None
        try:
            return self.prices.get(limit, self._unpriced)(usage, model)
        except ArithmeticError:
            self._metrics.miscounted.labels(limit).inc()
            return self._unpriced(usage, model)

    def _taken(self, book: Book, since: float) -> None:
        for at, end in self._ended:
            if at >= since - SLACK_S:
                self._settle((book,), end, at)

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


def _model_of(end: ResponseCompleted) -> str:
    return end.served or (end.target.model if end.target is not None else end.model) or ""


def _nothing_missing() -> str | None:
    return None


def _nothing() -> None:
    return


def _never() -> bool:
    return False


def _part(window: LimitWindow, share: float) -> LimitWindow:
    if window.unit == "concurrency":
        amount: float = max(1.0, window.amount * share // 1) if window.amount else 0.0
        return replace(window, amount=amount)
    burst = max(1.0, window.burst * share) if window.burst else 0.0
    return replace(window, amount=window.amount * share, burst=burst)
