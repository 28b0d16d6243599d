"""The generations of the contracts that this distribution supports, and which of them are compatible.

Within a generation messages only gain optional fields, so every mix of versions works. A message that is replaced by
its next major version begins a new generation; the distribution that no longer speaks the replaced one raises `OLDEST`.
"""

from typing import Final, NamedTuple

NEWEST: Final = 1
OLDEST: Final = 1


class Generations(NamedTuple):
    """Oldest and newest that a process speaks."""

    oldest: int
    newest: int

    def is_compatible_with(self, other: "Generations") -> bool:
        """Whether there is one that both speak."""
        return self.oldest <= other.newest and other.oldest <= self.newest

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SPOKEN: Final = Generations(OLDEST, NEWEST)
"""By this distribution."""
