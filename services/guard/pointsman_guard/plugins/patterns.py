"""Searches patterns in folded texts, and in texts hidden in them."""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final, Literal

from pydantic import Field

from pointsman_guard.domain.decoding import BETWEEN, Work, hidden
from pointsman_guard.domain.disguises import disguises
from pointsman_guard.domain.folding import fold, offsets
from pointsman_guard.domain.pattern import Pattern
from pointsman_guard.domain.pattern_set import Hit, PatternSet, pattern_set
from pointsman_guard.domain.phrase_texts import covered, joined
from pointsman_guard.plugins.catalogue.injection import INJECTION
from pointsman_guard.plugins.catalogue.jailbreak import JAILBREAK
from pointsman_guard.plugins.catalogue.other_languages import OTHER_LANGUAGES
from pointsman_guard.plugins.catalogue.personal import PERSONAL
from pointsman_guard.plugins.catalogue.secrets import SECRETS
from pointsman_plugins.guarding import ANY_ROLE, Checked, CheckedText, Detector, Finding
from pointsman_plugins.plugin import Params

UNREADABLE_LONG: Final = "unreadable.long"

Group = Literal["secrets", "pii", "injection"]

_BUILT_IN: Final[dict[str, tuple[Pattern, ...]]] = {
    "secrets": SECRETS,
    "pii": PERSONAL,
    "injection": (*INJECTION, *JAILBREAK, *OTHER_LANGUAGES),
}


class PatternsParams(Params):
    """Parameters of `patterns`."""

    groups: tuple[Group, ...] = ("secrets", "pii", "injection")
    """The built-in groups."""
    patterns: dict[str, tuple[str, ...]] = Field(default_factory=dict[str, tuple[str, ...]])
    """Further patterns: category → expressions in RE2 syntax, case-insensitive."""
    allow: tuple[str, ...] = ()
    """Expressions; a match that one of them matches as a whole is ignored."""
    injection_roles: tuple[str, ...] = ("user", "tool")
    """Roles that can inject into a prompt; `*` is every role. Instructions of `system` are expected to instruct."""
    disguised: bool = True
    """Also search text that is encoded, spelt in digits, reversed, or spread over several texts."""
    disguised_up_to: int = Field(default=262144, ge=0)
    """Characters of a request or answer above which only plain forms are searched; `unreadable.long` then reports
    that."""


class Patterns(Detector[PatternsParams]):
    """Finds known forms: credentials, personal data, phrases of prompt attacks, and an operator's own patterns."""

    type_name = "patterns"

    def setup(self) -> None:
        own = [Pattern(category, regex) for category, regexes in self.params.patterns.items() for regex in regexes]
        said = [pattern for group in self.params.groups if group != "injection" for pattern in _BUILT_IN[group]]
        attacks = _BUILT_IN["injection"] if "injection" in self.params.groups else ()
        keys = _BUILT_IN["secrets"] if "secrets" in self.params.groups else ()
        self._said = pattern_set((*said, *own), self.params.allow, self.name)
        """The patterns that apply to every role."""
        self._everything = pattern_set((*said, *own, *attacks), self.params.allow, self.name)
        self._disguised = pattern_set((*attacks, *own), self.params.allow, self.name)
        self._together = pattern_set((*attacks, *own, *keys), self.params.allow, self.name)
        self._roles = frozenset(self.params.injection_roles)
        self._deep = self.params.disguised_up_to if self.params.disguised else -1

    @property
    def categories(self) -> Sequence[str]:
        """Categories of all patterns; see `Detector.categories`."""
        return self._everything.categories

    def detect(self, checked: Checked) -> Sequence[Finding]:
        """Findings, in one pass over each text, and shorter ones over its hidden texts."""
        found: list[Finding] = []
        together: list[str] = []
        placed: set[tuple[str, str]] = set()
        work = Work()
        deeper = checked.size <= self._deep
        for index, text in enumerate(checked.texts):
            folded = fold(text.text)
            exposed = self._exposed(checked, text)
            looked = covered(folded) if exposed else folded
            hits = self._plain(folded, looked, exposed=exposed)
            if hits:
                found += self._located(hits, index, text.text, folded)
                placed.update((hit.category, folded[hit.start : hit.end]) for hit in hits)
            if not deeper:
                continue
            if exposed:
                together.append(looked)
                found += self._hinted(self._disguised, disguises(text.text, looked), index, placed)
            found += self._decoded(folded, index, work, exposed=exposed)
        if deeper and checked.direction == "request":
            # Pieces that are harmless alone, whatever their neighbours.
            for whole in joined(together):
                found += self._hinted(self._together, [whole], None, placed)
                found += self._hinted(self._disguised, disguises(whole, whole), None, placed)
                found += self._decoded(whole, None, work, exposed=True)
        if work.exceeded or (not deeper and self._deep >= 0):
            found.append(Finding(UNREADABLE_LONG, self.name))
        return found

    def _plain(self, folded: str, looked: str, *, exposed: bool) -> list[Hit]:
        """Findings in the plain text. `looked` is the text without its encoded data, in which no phrase is searched."""
        if not exposed:
            return list(self._said.find_hits(folded))
        if looked is folded:
            return list(self._everything.find_hits(folded))
        return list(dict.fromkeys((*self._said.find_hits(folded), *self._disguised.find_hits(looked))))

    def _exposed(self, checked: Checked, text: CheckedText) -> bool:
        return checked.direction == "response" or text.role in self._roles or ANY_ROLE in self._roles

    def _located(self, hits: Iterable[Hit], index: int, text: str, folded: str) -> Iterator[Finding]:
        places: list[int] | None = None
        for hit in hits:
            if folded is text:
                yield Finding(hit.category, self.name, index, hit.start, hit.end)
                continue
            places = places or offsets(text)
            if len(places) == len(folded) + 1:
                yield Finding(hit.category, self.name, index, places[hit.start], places[hit.end - 1] + 1)
            else:
                yield Finding(hit.category, self.name, index)

    def _hinted(
        self,
        patterns: PatternSet,
        readings: Iterable[str],
        index: int | None,
        placed: Container[tuple[str, str]] = (),
    ) -> Iterator[Finding]:
        """Findings in other readings, without a place. `placed`: categories and texts that were found at their place,
        which most readings show again."""
        for reading in readings:
            for hit in patterns.find_hits(reading):
                if (hit.category, reading[hit.start : hit.end]) not in placed:
                    yield Finding(hit.category, self.name, index)

    def _decoded(self, folded: str, index: int | None, work: Work, *, exposed: bool) -> Iterator[Finding]:
        inner = BETWEEN.join(hidden(folded, work))
        if not inner:
            return
        decoded = fold(inner)
        looked = covered(decoded) if exposed else decoded
        for hit in self._plain(decoded, looked, exposed=exposed):
            yield Finding(hit.category, self.name, index)
        if exposed:
            yield from self._hinted(self._disguised, disguises(inner, looked), index)
