"""Puts the model that serves in the place of the name that was asked for (InferenceModelRewrite of the Gateway API
inference extension: exact before generic, then in order; shares in proportion to their weights)."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pointsman_core.config.rewriting import ANY, Rewrite
from pointsman_core.dealing import Dealer


class Rewritten(NamedTuple):
    """The result of a rule for a model name."""

    model: str
    rule: str
    """The rule's label."""


class _Rule:
    def __init__(self, rewrite: Rewrite) -> None:
        self.label: Final = rewrite.label
        kind, _, header = rewrite.sticky.partition(":")
        self._by_session: Final = kind == "session"
        self._header: Final = header.lower()
        self._dealer: Final = Dealer(self.label, rewrite.to)

    def model(self, request_id: str, session: str | None, headers: Mapping[str, str]) -> str:
        key = session if self._by_session else headers.get(self._header)
        return self._dealer.arm_of(key or request_id)


class Rewrites:
    """The compiled `rewrites` section."""

    def __init__(self, rewrites: Iterable[Rewrite]) -> None:
        self._exact: Final[dict[str, _Rule]] = {}
        patterns: list[tuple[str, _Rule]] = []
        for rewrite in rewrites:
            rule = _Rule(rewrite)
            for text in rewrite.match:
                if ANY in text:
                    patterns.append((text, rule))
                else:
                    self._exact.setdefault(text, rule)
        patterns.sort(key=lambda pattern: pattern[0] == ANY)
        self._patterns: Final = [
            (re.compile(".*".join(re.escape(part) for part in text.split(ANY)), re.DOTALL), rule)
            for text, rule in patterns
        ]

    @property
    def has_rules(self) -> bool:
        return bool(self._exact or self._patterns)

    def find_rewrite(
        self, model: str, request_id: str, session: str | None, headers: Mapping[str, str]
    ) -> Rewritten | None:
        """The model that serves a request for `model`; None when no rule matches. Header names are in lower case."""
        rule = self._exact.get(model)
        if rule is None:
            rule = next((rule for pattern, rule in self._patterns if pattern.fullmatch(model)), None)
        return None if rule is None else Rewritten(rule.model(request_id, session, headers), rule.label)
