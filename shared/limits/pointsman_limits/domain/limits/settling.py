"""Settles requests that have ended, in the books that count them."""

from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from math import ceil
from operator import attrgetter
from typing import Final, NamedTuple

from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_limits.domain.limits.book import Book, Settled
from pointsman_limits.domain.limits.output_lengths import OutputLengths
from pointsman_limits.domain.limits.token_cost import TokenCost

LATELY_S: Final = 5.0
"""How long an ended request is remembered, for shards that are taken over."""
SLACK_S: Final = 0.2
"""Maximum difference between two preprocessors' clocks, and maximum delay of an event."""

_charges_of: Final = attrgetter("charges")


class Settlement(NamedTuple):
    """The result of settling one request."""

    settled: list[Settled]
    """For each token limit that counted it."""
    miscounted: list[str]
    """Limits whose price failed: the request was counted without it."""


class Settlements:
    """Pure. Times are unix seconds."""

    def __init__(self) -> None:
        self.lengths: Final = OutputLengths()
        """Learnt lengths of answers."""
        self.prices: Mapping[str, TokenCost] = {}
        """The token limits, by name."""
        self._unpriced: Final = TokenCost()
        self._ended: Final[deque[tuple[float, ResponseCompleted]]] = deque()
        """The requests that ended lately, with the time of each."""

    def settle_request(self, books: Iterable[Book], end: ResponseCompleted, now: float) -> Settlement:
        """Settle a request that ended at `now`, and learn the length of its answer."""
        self._ended.append((now, end))
        while self._ended[0][0] < now - LATELY_S:
            self._ended.popleft()
        self._learn_length(end)
        return self._settle(books, end, now)

    def settle_missed(self, book: Book, since: float) -> list[Settlement]:
        """Settle the requests that have ended since `since` in a book that was just taken over."""
        return [self._settle((book,), end, at) for at, end in self._ended if at >= since - SLACK_S]

    def _learn_length(self, end: ResponseCompleted) -> None:
        usage = end.usage
        if usage is None or not usage.completion_tokens or usage.estimated:
            return
        tenant = end.identity.tenant if end.identity is not None else ""
        tokens = ceil(usage.completion_tokens / end.answers)
        names = (end.model,) if end.model == end.served else (end.model, end.served)
        for name in names:
            if name is not None:
                # Limits that count for all tenants use the answer lengths of all tenants.
                self.lengths.learn_length("", name, tokens)
                if tenant:
                    self.lengths.learn_length(tenant, name, tokens)

    def _settle(self, books: Iterable[Book], end: ResponseCompleted, at: float) -> Settlement:
        settlement = Settlement([], [])
        request = end.source, end.request_id
        # Few of them have any: shards are many more than the tenants whose requests are open.
        for book in filter(_charges_of, books):
            if request in book.charges:
                for settled in book.settle_request(request, partial(self._cost, end, settlement.miscounted), at):
                    if settled.limit in self.prices:
                        settlement.settled.append(settled)
        return settlement

    def _cost(self, end: ResponseCompleted, miscounted: list[str], limit: str) -> float | None:
        """The cost of an ended request for one limit; None without usage."""
        answers = [(each.usage, each.served or each.target.model) for each in end.unused or ()]
        answers.append((end.usage, end.served or (end.target.model if end.target is not None else end.model) or ""))
        costs = [self._cost_of(usage, model, limit, miscounted) for usage, model in answers if usage is not None]
        return sum(costs) if costs else None

    def _cost_of(self, usage: Usage, model: str, limit: str, miscounted: list[str]) -> float:
        try:
            return self.prices.get(limit, self._unpriced)(usage, model)
        except ArithmeticError:
            miscounted.append(limit)
            return self._unpriced(usage, model)
