"""How long a page of an engine takes, and from when on its answer is late. Pure; times in seconds."""

from typing import Final

LONGEST_ANSWER_S: Final = 30.0
"""An answer is read to its end when it comes late, but not later than this."""
LATEST_S: Final = 10.0
"""From this time on an answer is late, however long the page usually takes."""
_USUAL_WEIGHT: Final = 1 / 8
_SPREAD_WEIGHT: Final = 1 / 4
_SPREADS: Final = 4.0


class PageTime:
    """The usual time of one page, from those that it took: mean and spread as TCP estimates them for its
    retransmission timer (RFC 6298, section 2). No answer is late before `shortest_s`, and every one is after
    `latest_s`."""

    def __init__(self, shortest_s: float, latest_s: float = LATEST_S) -> None:
        self.latest_s: Final = max(shortest_s, latest_s)
        self._shortest_s: Final = shortest_s
        self._usual = 0.0
        self._spread = 0.0

    def record_answer(self, seconds: float) -> None:
        """An answer came, late or not."""
        if not self._usual:
            self._usual, self._spread = seconds, seconds / 2
            return
        self._spread += (abs(seconds - self._usual) - self._spread) * _SPREAD_WEIGHT
        self._usual += (seconds - self._usual) * _USUAL_WEIGHT

    @property
    def late_after_s(self) -> float:
        """Seconds from asking after which an answer is late."""
        return min(max(self._shortest_s, self._usual + _SPREADS * self._spread), self.latest_s)
