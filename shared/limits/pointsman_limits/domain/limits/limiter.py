"""The keeper of the counts, as a port of the limits."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Final

from pointsman_contracts.limits import LimitAsk, LimitVerdict
from pointsman_limits.domain.limits.book import Book
from pointsman_limits.domain.limits.output_lengths import OutputLengths
from pointsman_plugins.preprocessing import Answered


class Elsewhere(Awaitable[LimitVerdict]):
    """A question to a keeper that is another process. Awaited, it is asked alone. Raises Unavailable when no keeper
    answers."""

    __slots__ = ("with_later",)

    def __init__(self, ask: Callable[[Iterable[LimitAsk]], Awaitable[list[Answered]]]) -> None:
        self.with_later: Final = ask
        """Ask it, and in the same message the questions of the limits right behind that have the same keeper. Takes
        these, in order; returns the answers to both. One whose turn is still to come is answered with `elsewhere`."""

    def __await__(self) -> Generator[object, None, LimitVerdict]:
        return self._alone().__await__()

    async def _alone(self) -> LimitVerdict:
        [answered] = await self.with_later(())
        return answered.verdict


class Limiter(ABC):
    """A port; see `Ports`."""

    lengths: OutputLengths
    """Learnt lengths of answers."""

    @abstractmethod
    def count_at_keeper(self, ask: LimitAsk, at: float) -> LimitVerdict | Elsewhere:
        """Count a request that came at `at` (unix seconds) at its keeper. Raises Unavailable when none is known."""

    @abstractmethod
    def count_locally(self, ask: LimitAsk, at: float) -> LimitVerdict:
        """Count it here, against this process's share of the limit."""

    @abstractmethod
    def release_charges(self, asks: Iterable[LimitAsk], at: float) -> None:
        """Release the charges of a request that was rejected."""


class OwnBook(Limiter):
    """Counts everything here: for a pipeline that runs alone."""

    def __init__(self) -> None:
        self.lengths = OutputLengths()
        self.book: Final = Book(0)

    def count_at_keeper(self, ask: LimitAsk, at: float) -> LimitVerdict:
        return self.book.ask_limit(ask, at)

    def count_locally(self, ask: LimitAsk, at: float) -> LimitVerdict:
        return self.book.ask_limit(ask, at)

    def release_charges(self, asks: Iterable[LimitAsk], at: float) -> None:
        for ask in asks:
            self.book.release_charge(ask.edge, ask.request_id, ask.limit, at)
