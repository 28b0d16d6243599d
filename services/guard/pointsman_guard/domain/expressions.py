"""Expressions of RE2: many in one pass, in time linear in the text for any expression."""

from collections.abc import Iterator, Sequence
from typing import Final

import re2

_MEMORY: Final = 64 * 2**20
"""Most bytes of the automaton of one set."""


class Unusable(ValueError):
    """The expression isn't valid RE2."""


class Expressions:
    """Expressions that are searched together."""

    def __init__(self, expressions: Sequence[str], *, case_sensitive: bool = True) -> None:
        """Raises Unusable."""
        options = re2.Options()
        options.case_sensitive = case_sensitive
        options.log_errors = False
        options.max_mem = _MEMORY
        try:
            self._each: Final = [re2.compile(expression, options) for expression in expressions]
        except re2.error as error:
            reason: object = error.args[0] if error.args else error
            raise Unusable(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from error
        self._set: Final = re2.Set.SearchSet(options)
        for expression in expressions:
            self._set.Add(expression)
        if expressions:
            self._set.Compile()

    def find_matching(self, text: str) -> Sequence[int]:
        """The numbers of the expressions that match somewhere."""
        if not self._each or not text:
            return ()
        # The stubs say bool, as of a single expression.
        found: Sequence[int] | None = self._set.Match(text.encode())  # pyright: ignore[reportAssignmentType]
        return found or ()

    def find_each(self, number: int, text: str) -> Iterator[str]:
        """The matches of one expression."""
        return (match.group(0) for match in self._each[number].finditer(text))

    def find_spans(self, number: int, text: str, group: int) -> Iterator[tuple[str, int, int]]:
        """The matches of one group, with their places."""
        for match in self._each[number].finditer(text):
            yield match.group(group), *match.span(group)

    def matches_whole(self, text: str) -> bool:
        """Whether any expression matches the whole text."""
        return any(each.fullmatch(text) for each in self._each)
