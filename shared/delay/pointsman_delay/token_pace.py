"""How much of its time an engine spends on prompts, so that its answers keep the time between tokens that their service
levels promise.

A pass that computes prompts delays the next token of every answer that is being written. With a decode step of s and a
promised time I, a share of 1 - s/I of an engine's time is left for prompts. Prompts that were sent beyond that are
owed: further ones wait until the engine has caught up.
"""

import math
from collections.abc import Hashable
from typing import Final

MARGIN: Final = 0.1
"""Answers are held to this much less than the promised time."""
LEAST_SHARE: Final = 0.15
"""Prompts always get this share. An engine whose answers leave less takes no further answer in. A promise that leaves
less even beside no other answer slows no prompt: it can't be kept."""
MOST_OWED_MS: Final = 2000.0
"""No more prompts are made up for: some can't be held back, and answers end."""
_RECENT_MS: Final = 5000.0
"""Prompts count less and less as recent ones; after this time, an e-th."""


def prompt_share(step: float, itl: float) -> float:
    """The share of an engine's time that a promised time between tokens leaves for prompts; below 0 when decode steps
    take longer."""
    return 1.0 - step / (itl * (1.0 - MARGIN))


class TokenPace:
    """One engine that has answers with such a promise. Times are milliseconds; `step`: of a decode step there."""

    def __init__(self, now: float) -> None:
        self._promised: dict[Hashable, float] = {}
        self._owed = self._recent = 0.0
        self._at = now
        self.tightest = math.inf
        """The shortest promised time between tokens."""

    def __len__(self) -> int:
        return len(self._promised)

    def prompts_share(self, step: float) -> float:
        """The share of the engine's time that prompts get."""
        return max(LEAST_SHARE, prompt_share(step, self.tightest))

    def owed_ms(self, now: float, step: float) -> float:
        """How long until the engine has caught up with the prompts that it was sent."""
        share = self.prompts_share(step)
        return max(0.0, self._owed - (now - self._at) * share) / share

    def token_ms(self, now: float, step: float) -> float:
        """Predicted time between two tokens: a step, and the engine's prompts, as many as lately."""
        busy = self._recent * math.exp((self._at - now) / _RECENT_MS) / _RECENT_MS
        return step / (1.0 - min(busy, self.prompts_share(step)))

    def note_sent(self, key: Hashable, itl: float | None, prompt_ms: float, now: float, step: float) -> None:
        """A request was sent to the engine."""
        if self._promised:
            self._recent *= math.exp((self._at - now) / _RECENT_MS)
            self._recent += prompt_ms
            self._owed = min(MOST_OWED_MS, self.owed_ms(now, step) * self.prompts_share(step) + prompt_ms)
            self._at = now
        if itl is not None:
            self._promised[key] = itl
            self.tightest = min(self.tightest, itl)

    def drop_answer(self, key: Hashable) -> None:
        """The request ended."""
        if self._promised.pop(key, None) == self.tightest:
            self.tightest = min(self._promised.values(), default=math.inf)


class TokenPaces:
    """The engines of a pool, by their lives: those that have answers with a promise."""

    def __init__(self) -> None:
        self._engines: dict[int, TokenPace] = {}
        self._lives: dict[Hashable, int] = {}
        """Request → the engine that it was sent to."""

    def __bool__(self) -> bool:
        return bool(self._engines)

    def of_engine(self, life: int) -> TokenPace | None:
        """None where no answer has a promise."""
        return self._engines.get(life)

    def note_sent(self, life: int, key: Hashable, itl: float | None, prompt_ms: float, now: float, step: float) -> None:
        """A request was sent to an engine. `itl`: the promised time between its tokens."""
        pace = self._engines.get(life)
        if pace is None:
            if itl is None:
                return
            pace = self._engines[life] = TokenPace(now)
        pace.note_sent(key, itl, prompt_ms, now, step)
        if itl is not None:
            self._lives[key] = life

    def drop_request(self, key: Hashable) -> None:
        """A request ended, or never ran."""
        life = self._lives.pop(key, None)
        pace = None if life is None else self._engines.get(life)
        if life is not None and pace is not None:
            pace.drop_answer(key)
            if not len(pace):
                del self._engines[life]
