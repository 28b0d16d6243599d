"""Sums of regret from a flight log: the recorder's judge reads the log's events."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from pointsman_cli.explain.recordings import Form
from pointsman_cli.flight.log_reading import gaps, log_errors, progress_through
from pointsman_cli.flight.logged_events import LoggedEvent, logged_events
from pointsman_cli.flight.regret import KEYS, show
from pointsman_cli.words import counted
from pointsman_contracts.message import read_fields
from pointsman_contracts.regret import RegretQuery, RegretSum, RegretSums
from pointsman_flight.reader import open_log
from pointsman_recorder.domain.judge import Judge
from pointsman_recorder.domain.regret_sums import regret_rows

_JUDGE: Final = "log"
_UNJUDGED: Final = {
    "model": "before the times of the engines were learnt",
    "unanswered": "without a complete answer",
    "moved": "whose engine failed",
    "split": "that two engines shared",
    "unseen": "whose decision isn't in the log",
}
"""Reasons not to judge a request, in words."""


class LogSums:
    """The sums of a log, for one question."""

    def __init__(self, asked: RegretQuery) -> None:
        self.unjudged: Final[Counter[str]] = Counter()
        """The unjudged requests of all pools that were asked for, by reason."""
        self._asked: Final = asked
        self._rows: Final[dict[tuple[str, ...], Counter[str]]] = {}

    def read(self, events: Iterable[LoggedEvent]) -> None:
        """Have events judged, in their order, once a second of theirs as a recorder does."""
        judge = Judge()
        for event in events:
            if self._asked.pool in (None, event.pool):
                judge.judge_event(event.event)
                if judge.is_due:
                    self._add(judge)
        self._add(judge)

    def read_sums(self) -> RegretSums:
        """The answer, as a recorder would give it."""
        by = self._by
        rows = [
            read_fields(RegretSum, {**dict(zip(by, key, strict=True)), **row})
            for key, row in sorted(self._rows.items())
        ]
        return RegretSums(recorder=_JUDGE, judging=True, rows=tuple(rows))

    @property
    def _by(self) -> list[str]:
        return [name for name in KEYS if name in self._asked.by]

    def _add(self, judge: Judge) -> None:
        for verdicts in judge.take_verdicts():
            event = verdicts.make_message(_JUDGE, 1, _JUDGE)
            self.unjudged.update(event.unjudged)
            for row in regret_rows(event):
                if self._wanted(row):
                    key = tuple([str(getattr(row, name)) for name in self._by])
                    self._rows.setdefault(key, Counter()).update(
                        requests=row.requests, judged=row.judged, regret_us=row.regret_us, cost_us=row.cost_us
                    )

    def _wanted(self, row: RegretSum) -> bool:
        asked, hour = self._asked, row.hour or ""
        return (
            asked.profile in (None, row.profile)
            and (asked.since is None or hour >= asked.since)
            and (asked.until is None or hour[: len(asked.until)] <= asked.until)
        )


def regret_of(logs: Sequence[Path], asked: RegretQuery, console: Console, form: Form) -> None:
    """Print the sums of a log. CommandError for one that can't be read or replayed."""
    found = LogSums(asked)
    with log_errors():
        flights = open_log(logs)
        with progress_through(flights, "judging") as seen:
            found.read(logged_events(flights, seen))
    notes = [
        f"Not judged: {counted(count, 'request')} {_UNJUDGED.get(why, why)}."
        for why, count in found.unjudged.most_common()
    ]
    notes += [gap for flight in flights for gap in gaps(flight)]
    show(found.read_sums(), asked.by, console, form, notes)
