"""Patterns that are searched together, and the checks on their matches."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from pointsman_core.plugins import PluginError
from pointsman_guard.domain.expressions import Expressions, Unusable
from pointsman_guard.domain.folding import fold
from pointsman_guard.domain.pattern import Pattern


class Hit(NamedTuple):
    """A checked match of a pattern."""

    category: str
    start: int
    end: int


class PatternSet:
    """The patterns are folded like the texts that they are searched in."""

    def __init__(self, patterns: Sequence[Pattern], allowed: Sequence[str], where: str) -> None:
        """`allowed`: expressions; a match that one of them matches as a whole is ignored. Raises PluginError that names
        `where`."""
        self._patterns: Final = tuple(patterns)
        try:
            self._allowed: Final = Expressions(allowed, case_sensitive=False)
            self._expressions: Final = Expressions([fold(each.regex) for each in patterns], case_sensitive=False)
        except Unusable as error:
            raise PluginError(f"{where!r}: an expression is invalid: {error}") from error

    @property
    def categories(self) -> list[str]:
        """Categories of the patterns, each once."""
        return list(dict.fromkeys(pattern.category for pattern in self._patterns))

    def find_hits(self, text: str) -> Iterator[Hit]:
        """The hits in a folded text, with their places there."""
        for number in self._expressions.find_matching(text):
            pattern = self._patterns[number]
            for found, start, end in self._expressions.find_spans(number, text, pattern.group):
                if pattern.within is not None:
                    for begin, stop in pattern.within(text, start, end):
                        if not self._allowed.matches_whole(text[begin:stop]):
                            yield Hit(pattern.category, begin, stop)
                    continue
                if pattern.valid is not None and not pattern.valid(found):
                    continue
                if pattern.unless is not None and pattern.unless(text, start, end):
                    continue
                if not self._allowed.matches_whole(found):
                    yield Hit(pattern.category, start, end)


@lru_cache(maxsize=64)
def pattern_set(patterns: tuple[Pattern, ...], allowed: tuple[str, ...], where: str) -> PatternSet:
    """One set for all policies with the same patterns: building it takes 0.1 s. Raises PluginError."""
    return PatternSet(patterns, allowed, where)
