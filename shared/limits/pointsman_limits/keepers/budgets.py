"""Keeps the budgets of this process's shards: adds the cost of requests, and publishes warnings."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from pointsman_contracts.limits import BudgetReached
from pointsman_contracts.money import NANOS, dollars
from pointsman_core.budget_amount import period
from pointsman_limits.domain.budgets.charging import BudgetCharging, End
from pointsman_limits.domain.budgets.ledger import BudgetLedger
from pointsman_limits.domain.budgets.scope import BudgetScopes
from pointsman_limits.keepers.ends_reader import UNREADABLE
from pointsman_limits.keepers.limit_metrics import LimitMetrics
from pointsman_limits.keepers.shard_keeper import ShardKeeper
from pointsman_runtime.bus.backoff import full_jitter
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError
from pointsman_runtime.telling.logs import Log

BUSY_S: Final = 0.25
"""Between two readings while requests are open."""
IDLE_S: Final = 1.0
LOOK_S: Final = 4.0
"""Interval of checks whether the stream was recreated."""
LOOK_BACK: Final = 20_000
"""Messages of the stream before the first place, whose ends are read to know the attempts of lines among them."""
SAVED_S: Final = 30.0
"""Maximum interval of saving the place in the stream for an unchanged shard."""
_MOST_NAMES: Final = 100
"""Most models without a price that are counted separately."""

_log = Log("budgets")


class Ends(Protocol):
    """The stream of ends, as `EndsReader`."""

    async def find_stream(self) -> tuple[str, int]: ...
    async def read_after(self, sequence: int) -> tuple[list[End], int]: ...


class Budgets:
    """One of a process. `clock` as that of the keeper."""

    def __init__(
        self, bus: Bus, ends: Ends, keeper: ShardKeeper, metrics: LimitMetrics, clock: Callable[[], float]
    ) -> None:
        self._charging: Final = BudgetCharging()
        self._bus: Final = bus
        self._ends: Final = ends
        self._keeper: Final = keeper
        self._metrics: Final = metrics
        self._clock: Final = clock
        self._wanted: Final = asyncio.Event()
        self._known: Final = asyncio.Event()
        self._asked: Final = asyncio.Event()
        self._current = False
        self._has_looked_back = False
        self._looked_at = 0.0
        self._sequences: Final[Counter[str]] = Counter()
        self._unpriced: Final[set[str]] = set()
        self._saved_at = 0.0

    def set_budgets(self, scopes: dict[str, BudgetScopes]) -> None:
        """Replace the configured budgets."""
        self._charging.scopes = scopes
        if scopes:
            self._wanted.set()

    @property
    def missing(self) -> str | None:
        """Why spending isn't known; None when it is."""
        return None if self._known.is_set() else "the stream of events, which tells what was spent, can't be read yet"

    @property
    def is_current(self) -> bool:
        """Whether every event of the stream was read."""
        return self._current

    async def wait_until_ready(self) -> None:
        """Wait a little until spending is known, if a budget is configured."""
        if self._wanted.is_set():
            try:
                async with asyncio.timeout(5.0):
                    await self._known.wait()
            except TimeoutError:
                _log.warning("budgets_without_spending", hint=self.missing or "")

    def read_soon(self) -> None:
        """Read at once: a request waits for a shard that was just taken over."""
        self._asked.set()

    async def follow_ends(self) -> None:
        """Read events for ever, once a budget is configured."""
        await self._wanted.wait()
        failures, said = 0, ""
        while True:
            try:
                await self.read()
            except UNREADABLE as error:
                failures += 1
                if type(error).__name__ != said:
                    said = type(error).__name__
                    _log.warning("spending_unreadable", reason=said, hint="what is reserved stays reserved meanwhile")
                await asyncio.sleep(full_jitter(failures))
                continue
            failures, said = 0, ""
            open_here = any(book.budgets.open for book in self._keeper.kept_books())
            try:
                async with asyncio.timeout(BUSY_S if open_here else IDLE_S):
                    await self._asked.wait()
            except TimeoutError:
                pass  # it is time anyway
            self._asked.clear()

    async def read(self) -> None:
        """Add the cost of every event in the stream so far. Raises one of `UNREADABLE`."""
        try:
            await self._read()
        except UNREADABLE:
            self._current = False
            raise
        self._current = True
        self.publish_warnings()

    async def _read(self) -> None:
        await self._look()
        self._seek()
        self._known.set()
        if not self._has_looked_back:
            await self._look_back()
        following = 1
        while following:
            before = self._charging.position
            ends, following = await self._ends.read_after(before)
            self._seek()
            if self._charging.position < before:
                # A shard with an earlier place was taken over in the meantime: read again from there.
                following = 1
                continue
            self._charge(ends)
            self._metrics.spending_behind.set(following)
        for book in self._keeper.kept_books():
            book.budgets.read_all()

    async def _look_back(self) -> None:
        last = self._charging.position
        place = max(0, last - LOOK_BACK)
        while place < last:
            ends, _ = await self._ends.read_after(place)
            if not ends:
                break
            self._charging.remember_ends(end for end in ends if end.sequence <= last)
            place = ends[-1].sequence
        self._has_looked_back = True

    async def _look(self) -> None:
        """Check from time to time whether the stream was created anew."""
        now = time.monotonic()
        if self._current and now - self._looked_at < LOOK_S:
            return
        self._charging.follow_stream(*await self._ends.find_stream())
        self._looked_at = now

    def _seek(self) -> None:
        if self._charging.seek_place([book.budgets for book in self._keeper.kept_books()]):
            # Requests that spend wait for it.
            self._keeper.save_soon()

    def _charge(self, ends: list[End]) -> None:
        ledgers = {book.shard: book.budgets for book in self._keeper.kept_books()}
        charged = self._charging.charge_ends(ends, ledgers, self._clock())
        for end in charged.malformed:
            _log.warning("malformed_message", sequence=end.sequence, size=len(end.body))
        for model in charged.unpriced:
            self._count_unpriced(model)
        for name, amount in charged.costs:
            self._metrics.spent.labels(name).inc(amount / NANOS)

    def tick(self) -> None:
        """Call about once a second: publish warnings, and keep saved places recent."""
        if not self._charging.scopes:
            return
        self.publish_warnings()
        now = time.monotonic()
        if now - self._saved_at >= SAVED_S:
            self._saved_at = now
            for book in self._keeper.kept_books():
                if book.budgets.has_accounts:
                    book.has_changed = True

    def publish_warnings(self) -> None:
        for book in self._keeper.kept_books():
            self._tell(book.budgets)

    def _tell(self, ledger: BudgetLedger) -> None:
        reached, ledger.reached = ledger.reached, []
        for each in reached:
            scopes = self._charging.scopes.get(each.limit)
            whose = {} if scopes is None else scopes.parse_scope(each.scope)
            amount = each.window.soft if each.level == "soft" else each.window.amount
            self._metrics.reached.labels(each.limit, each.level).inc()
            _log.warning(
                "budget_reached",
                budget=each.limit,
                level=each.level,
                period=period(each.window.days),
                amount=dollars(amount or 0),
                spent=dollars(each.spent),
                **whose,
            )
            self._sequences[each.limit] += 1
            event = BudgetReached(
                source=self._bus.process.instance,
                sequence=self._sequences[each.limit],
                at_ms=round(self._clock() * 1000),
                budget=each.limit,
                level=each.level,
                scope=whose,
                period=period(each.window.days),
                amount_nanos=amount or 0,
                spent_nanos=each.spent,
                reset_ms=each.reset_ms,
            )
            try:
                self._bus.publish(event, each.limit)
            except BusError as error:
                _log.warning("budget_event_lost", budget=each.limit, reason=type(error).__name__)

    def _count_unpriced(self, model: str) -> None:
        name = model if model in self._unpriced or len(self._unpriced) < _MOST_NAMES else "other"
        if name not in self._unpriced:
            self._unpriced.add(name)
            _log.warning("model_without_price", model=name, hint="give it `models.<name>.cost`; no budget counts it")
        self._metrics.unpriced.labels(name).inc()
