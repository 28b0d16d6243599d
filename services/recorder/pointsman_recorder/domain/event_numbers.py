"""The numbers of events, in which a gap is an event that hasn't come: it may come later, or is lost. Pure."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from pointsman_contracts.event_loss import EventsLost, EventSpan
from pointsman_recorder.domain.entry import RecordedEvent
from pointsman_recorder.domain.numbers import MOST

LOSSES: Final = EventsLost.address.type_id
_DIGITS: Final = len(str(MOST)) - 1


class Latest(NamedTuple):
    """The greatest number of a series so far."""

    number: int
    at_ms: int


class Gap(EventSpan, frozen=True, kw_only=True):
    """Numbers of a series that are missing. `from_ms` is the time of the event before them where their publisher
    doesn't report its own."""

    told: bool = False
    """Their publisher reports that it gave them up."""


class EventNumbers:
    """By series: the subject of an event and its publisher's instance, as its id begins."""

    def __init__(self, latest: dict[str, Latest], gaps: dict[str, list[Gap]]) -> None:
        self._latest: Final = latest
        self._gaps: Final = gaps
        self.changed: Final[set[str]] = set()
        """Series with another greatest number."""
        self.changed_gaps: Final[set[str]] = set()
        """Series with other gaps."""

    def latest_of(self, series: str) -> Latest:
        """The greatest number of a series that was seen."""
        return self._latest[series]

    def find_gaps(self, series: str) -> list[Gap]:
        return self._gaps.get(series, [])

    def note_events(self, events: Iterable[RecordedEvent]) -> None:
        """Note new events, each of which comes once."""
        known, changed = self._latest, self.changed
        for event in events:
            series, _, digits = event.key.rpartition(":")
            if not series or not digits.isdecimal() or len(digits) > _DIGITS:
                continue
            number = int(digits)
            last = known.get(series)
            if last is None or number == last.number + 1:
                known[series] = Latest(number, event.at_ms)
                changed.add(series)
            elif number > last.number:
                self._open(series, Gap(first=last.number + 1, last=number - 1, from_ms=last.at_ms, to_ms=event.at_ms))
                known[series] = Latest(number, event.at_ms)
                changed.add(series)
            elif series in self._gaps:
                self._fill(series, number, event.at_ms)
            if event.type == LOSSES:
                self._report(event.body)

    def _report(self, body: bytes) -> None:
        for lost in EventsLost.decode(body).lost:
            series = f"{lost.subject}:{lost.source}"
            gaps = self.find_gaps(series)
            for place, gap in enumerate(gaps):
                if gap.first <= lost.last and gap.last >= lost.first:
                    gaps[place] = replace(gap, told=True)
                    self.changed_gaps.add(series)
            last = self._latest.get(series)
            if last is None or lost.last > last.number:
                first = lost.first if last is None else max(lost.first, last.number + 1)
                self._open(series, Gap(first=first, last=lost.last, from_ms=lost.from_ms, to_ms=lost.to_ms, told=True))
                self._latest[series] = Latest(lost.last, lost.to_ms)
                self.changed.add(series)

    def _open(self, series: str, gap: Gap) -> None:
        self._gaps.setdefault(series, []).append(gap)
        self.changed_gaps.add(series)

    def _fill(self, series: str, number: int, at_ms: int) -> None:
        gaps = self._gaps[series]
        for place, gap in enumerate(gaps):
            if gap.first <= number <= gap.last:
                before = replace(gap, last=number - 1, to_ms=min(max(at_ms, gap.from_ms), gap.to_ms))
                after = replace(gap, first=number + 1, from_ms=min(max(at_ms, gap.from_ms), gap.to_ms))
                gaps[place : place + 1] = [each for each in (before, after) if each.first <= each.last]
                self.changed_gaps.add(series)
                return
