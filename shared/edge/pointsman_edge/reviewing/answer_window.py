"""The events of a stream that a stage hasn't let pass yet.

The stage sees any text of at most `overlap` characters as a whole before a part of it leaves: the last characters of a
window stay here and are shown again at the beginning of the next one.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pointsman_apis.answers import OTHER, Reading, read, slots_of
from pointsman_apis.api import Api
from pointsman_apis.streams import StreamEvent
from pointsman_apis.texts import Slot, finished_choices, forget_spelling, put_all
from pointsman_contracts.journey import AnswerUse
from pointsman_contracts.response_stage import AnswerText

_SENTENCE_ENDS: Final = (".", "!", "?", "\n", "。", "！", "？", "।")  # noqa: RUF001 - of other scripts
_SILENT: Final = 8
"""Events without more of a text that its API doesn't know, after which it counts as complete."""
_CLOSING: Final = " \"')]»”’"  # noqa: RUF001 - quotes of other scripts


class _Held:
    """One event, with its new texts and those that it repeats."""

    __slots__ = ("event", "fresh", "repeats")

    def __init__(self, event: StreamEvent) -> None:
        self.event = event
        self.fresh: list[Slot] = []
        self.repeats: list[Slot] = []


class AnswerWindow:
    """One stream before one stage."""

    def __init__(self, api: Api, use: AnswerUse) -> None:
        self._api = api
        self._size = use.window if use.mode == "window" else None
        self._overlap = use.overlap
        self._sentences = use.sentences
        self._sentence_ends = False
        self._held: list[_Held] = []
        self._unseen = 0
        self.size = 0
        """Bytes that are held: events, and texts that have left and may be repeated by a later event."""
        self._repeats = api.repeats
        self._open: dict[str, set[str]] = {}
        self._closed: set[str] = set()
        self._released: dict[str, str] = {}
        self._known: set[str] = set()
        self._altered: set[str] = set()
        self._looks = use.content == "text"
        self._added = 0
        self._others: dict[str, int] = {}

    @property
    def is_due(self) -> bool:
        """Enough text is here for the stage to be asked."""
        if self._size is None:
            return False
        return self._unseen >= self._size or (self._sentence_ends and 2 * self._unseen >= self._size)

    def add_event(self, event: StreamEvent) -> bool:
        """Hold an event. Whether all of it will be shown; true for a stage that doesn't look."""
        held = _Held(event)
        self._held.append(held)
        self.size += len(event.raw)
        self._added += 1
        readable = not self._looks or event.readable
        if event.document is None:
            return readable
        reading = read(self._api, event.document) if self._looks else Reading(slots_of(self._api, event.document), True)
        self._sort(held, reading.slots)
        for choice in finished_choices(event.document):
            self._closed |= self._open.get(choice, set())
        return readable and reading.whole

    def _sort(self, held: _Held, slots: Iterable[Slot]) -> None:
        """Note the texts of an event, and which of those before it are complete."""
        came: dict[str, set[str]] = {}
        for slot in slots:
            if slot.repeats and slot.part in self._known:
                held.repeats.append(slot)
                self._closed.add(slot.part)
                continue
            self._known.add(slot.part)
            if slot.choice == OTHER:
                self._others[slot.part] = self._added
            else:
                came.setdefault(slot.choice, set()).add(slot.part)
            held.fresh.append(slot)
            if slot.complete:
                self._closed.add(slot.part)
            else:
                self._closed.discard(slot.part)
            self._unseen += len(slot.text)
            if self._sentences:
                self._sentence_ends = slot.text.rstrip(_CLOSING)[-1:] in _SENTENCE_ENDS
        for choice, parts in came.items():
            # The texts of a choice come one after the other, or side by side if an engine sends one twice: a text that
            # the next event doesn't continue is complete.
            self._closed |= self._open.get(choice, set()) - parts
            self._open[choice] = parts
        if self._others:
            over = [part for part, last in self._others.items() if self._added - last >= _SILENT]
            self._closed.update(over)
            for part in over:
                del self._others[part]

    def held_texts(self) -> tuple[AnswerText, ...]:
        """The texts that are held, in the order in which they began."""
        found: dict[str, tuple[str, list[str]]] = {}
        for slot in self._fresh():
            found.setdefault(slot.part, (slot.kind, []))[1].append(slot.text)
        return tuple(AnswerText(part=part, kind=kind, text="".join(all_)) for part, (kind, all_) in found.items())

    def encode_events(self) -> bytes:
        """The events that are held, as bytes."""
        return b"".join(held.event.encode() for held in self._held)

    def replace_texts(self, edits: Mapping[str, str]) -> None:
        """Put other texts in the place of held ones, by part, all or none. Raises ValueError where JSON belongs and
        isn't."""
        changed: list[tuple[_Held, Slot, str]] = []
        for part, text in edits.items():
            places = [(held, slot) for held in self._held for slot in held.fresh if slot.part == part]
            # The part that stays here for the next window needs an event of its own.
            cut = max(0, len(text) - self._overlap) if len(places) > 1 and self._size is not None else len(text)
            for position, (held, slot) in enumerate(places):
                last = position == len(places) - 1
                changed.append((held, slot, (text[:cut] if position == 0 else "") + (text[cut:] if last else "")))
        put_all([(slot, text) for _, slot, text in changed])
        for held, slot, _ in changed:
            held.event.changed = True
            self._altered.add(slot.part)
        if changed:
            # Token ids and log probabilities of a text may come in an event before it.
            for held in self._held:
                held.event.changed |= forget_spelling(held.event.document)

    def release_events(self, *, last: bool) -> list[StreamEvent]:
        """The events that may leave, once the stage has let the shown ones pass. `last`: no further ones follow."""
        left: dict[str, int] = {}
        for slot in self._fresh():
            left[slot.part] = left.get(slot.part, 0) + len(slot.text)
        leaving = 0
        while leaving < len(self._held) and (last or self._may_leave(self._held[leaving], left)):
            self._leave(self._held[leaving], left)
            leaving += 1
        out = [held.event for held in self._held[:leaving]]
        del self._held[:leaving]
        self._unseen = 0
        return out

    def _fresh(self) -> Iterable[Slot]:
        return (slot for held in self._held for slot in held.fresh)

    def _may_leave(self, held: _Held, left: Mapping[str, int]) -> bool:
        return all(
            slot.part in self._closed or left[slot.part] - len(slot.text) >= self._overlap for slot in held.fresh
        )

    def _leave(self, held: _Held, left: dict[str, int]) -> None:
        self.size -= len(held.event.raw)
        for slot in held.fresh:
            left[slot.part] -= len(slot.text)
            if self._repeats:
                self._released[slot.part] = self._released.get(slot.part, "") + slot.text
                self.size += len(slot.text)
        for slot in held.repeats:
            if slot.part in self._altered:
                slot.replace_text(self._released.get(slot.part, ""))
                held.event.changed = True
                forget_spelling(held.event.document)
