"""Ids and names of tool calls, in the characters and the length that a provider takes.

Each model's service makes ids of its own form: vLLM's parser for Kimi writes `functions.now:0`, others write
`chatcmpl-tool-` and 32 digits, or the same `call_0` in every turn. The result is a function of the conversation so far:
a provider's prompt cache finds the same prefix again in the next turn.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

_UNSAFE: Final = re.compile(r"[^a-zA-Z0-9_-]")
_DIGEST: Final = 8


class CallIds(NamedTuple):
    """The ids that a provider takes: of `[a-zA-Z0-9_-]`, at most `longest` characters."""

    longest: int

    def fit_id(self, given: str, taken: Iterable[str] = ()) -> str:
        """`given` if it fits and isn't `taken`; else an id that does."""
        fitted = _within(_UNSAFE.sub("_", given) or "call", given, self.longest)
        number = 2
        found = fitted
        while found in taken:
            found = f"{fitted[: self.longest - 6]}_{number}"
            number += 1
        return found


NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


class ToolNames:
    """The names of a request's tools for the provider, and back."""

    def __init__(self, declared: Iterable[str], longest: int) -> None:
        self._longest = longest
        self._sent: dict[str, str] = {}
        for name in declared:
            self.name_for_provider(name)
        self.back: Final = {sent: name for name, sent in self._sent.items() if sent != name}
        """The client's name of each name that had to change."""

    def name_for_provider(self, name: str) -> str:
        """The name for the provider. A history may call tools that the request doesn't declare."""
        known = self._sent.get(name)
        if known is None:
            known = CallIds(self._longest).fit_id(name, self._sent.values())
            self._sent[name] = known
        return known


def _within(fitted: str, given: str, longest: int) -> str:
    if len(fitted) <= longest:
        return fitted
    return f"{fitted[: longest - _DIGEST - 1]}-{hashlib.sha256(given.encode('utf-8', 'replace')).hexdigest()[:_DIGEST]}"


NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
"""Mistral's ids (https://github.com/mistralai/mistral-common: ids of tool calls have nine letters or digits)."""


def of_nine(given: str) -> str:
    """The id as Mistral's service takes it."""
    return given if NINE.fullmatch(given) else hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[:9]


def at_most(given: str, longest: int) -> str:
    """The id, shortened where it is too long; every character is kept where it isn't."""
    return given if len(given) <= longest else _within(_UNSAFE.sub("_", given), given, longest)
