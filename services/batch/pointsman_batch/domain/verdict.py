"""The consequence of the answer to a line's request: its result, or another attempt."""

import random
from typing import Final, Literal, NamedTuple

from pointsman_core.door_answer import DoorAnswer

LineVerdict = Literal["final", "refused", "limited", "again", "cut"]
"""`final`: the answer is the line's result. `refused`: there was no room, or `limited`: its sender has reached a limit;
the line begins again. `again`: it failed, or `cut`: its answer broke off; the line begins again, a bounded number of
times."""

MOST_FAILURES: Final = 4
"""So many failures of a line are its result."""
MOST_CUTS: Final = 12
"""So many answers that broke off are its result: a line must not end one process after the other for ever."""
MOST_UNKNOWN: Final = 20
"""So often a line begins again because its identity isn't known yet to every preprocessor."""
NO_QUOTA: Final = b'"insufficient_quota"'
_NO_ROOM: Final = frozenset({408, 425, 429, 502, 503, 529})
_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 10.0
_LONGEST_LIMIT_S: Final = 60.0
"""The same after a refusal that says a time of its own."""


class LineTries(NamedTuple):
    """The failures of a line so far."""

    failures: int = 0
    refusals: int = 0
    cuts: int = 0

    def after(self, verdict: str) -> "LineTries":
        """With one more."""
        if verdict == "again":
            return self._replace(failures=self.failures + 1)
        if verdict == "cut":
            return self._replace(cuts=self.cuts + 1)
        return self._replace(refusals=self.refusals + 1)

    @property
    def attempt(self) -> int:
        """Number of the next attempt that counts: an attempt that was refused or cut off is repeated under its
        number, under which it is charged once."""
        return self.failures + 1


def judge(answer: DoorAnswer, tries: LineTries) -> LineVerdict:
    """The consequence of an answer."""
    status = answer.status
    if answer.failure == "oversized":
        # The next answer would be as large, and is charged as this one was.
        return "final"
    if status == 0 and answer.failure != "unsent":
        return "cut" if tries.cuts + 1 < MOST_CUTS else "final"
    if answer.limited:
        # A quota of 0 stays.
        return "final" if NO_QUOTA in answer.body else "limited"
    if status == 0 or status in _NO_ROOM:
        return "refused"
    if answer.identity_unknown:
        return "refused" if tries.refusals < MOST_UNKNOWN else "final"
    if status >= 500 and tries.failures + 1 < MOST_FAILURES:
        return "again"
    return "final"


def wait_s(tries: LineTries, retry_after_s: float | None, share: float | None = None) -> float:
    """Seconds until the line begins again; `share` in [0,1] replaces chance."""
    if retry_after_s is not None:
        return min(retry_after_s, _LONGEST_LIMIT_S)
    share = random.random() if share is None else share
    return min(_LONGEST_WAIT_S, _WAIT_S * 2.0 ** min(10, tries.failures + tries.refusals + tries.cuts)) * (
        0.5 + share / 2
    )
