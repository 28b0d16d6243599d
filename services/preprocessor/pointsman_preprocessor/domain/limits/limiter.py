"""The keeper of the counts, as a port of the limits."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable
from typing import Final

from pointsman_contracts.limit_asks import AnyAsk, InnerVerdict
from pointsman_preprocessor.domain.limits.book import Book
from pointsman_preprocessor.domain.limits.output_lengths import OutputLengths


class Limiter(ABC):
    """A port; see `Ports`."""

    lengths: OutputLengths
    """Learnt lengths of answers."""

    @abstractmethod
    def ask(self, ask: AnyAsk, at: float) -> InnerVerdict | Awaitable[InnerVerdict]:
        """Count a request that came at `at` (unix seconds) at its keeper; awaitable when the keeper is another process.
        Raises Unavailable when no keeper answers."""

    @abstractmethod
    def alone(self, ask: AnyAsk, at: float) -> InnerVerdict:
        """Count it here, against this process's share of the limit."""

    @abstractmethod
    def release(self, asks: Iterable[AnyAsk], at: float) -> None:
        """Release the charges of a request that was rejected."""


class OwnBook(Limiter):
    """Counts everything here: for a pipeline that runs alone."""

    def __init__(self) -> None:
        self.lengths = OutputLengths()
        self.book: Final = Book(0)

    def ask(self, ask: AnyAsk, at: float) -> InnerVerdict:
        return self.book.ask(ask, at)

    def alone(self, ask: AnyAsk, at: float) -> InnerVerdict:
        return self.book.ask(ask, at)

    def release(self, asks: Iterable[AnyAsk], at: float) -> None:
        for ask in asks:
            self.book.release(ask.edge, ask.request_id, ask.limit, at)
