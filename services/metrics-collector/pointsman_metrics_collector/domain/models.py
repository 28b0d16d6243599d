"""The models of completions: their configured names, and the statistics of each from the last minutes.

Times are seconds of any monotonic clock.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from pointsman_contracts.journey import Target
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.response import Attempt, ResponseCompleted, UnusedAnswer
from pointsman_core.config import Config

OTHER: Final = "other"
"""Replaces every name that isn't configured: names from clients must not create series without end."""
NO_POOL: Final = "-"
WINDOW_S: Final = 300.0
SLOT_S: Final = 5.0
"""Completions are forgotten by slots: a window costs sixty of these, however many requests there are."""

FAILURES: Final = frozenset({"engine_error", "cut_off", "timeout"})
"""Outcomes that are the engine's or provider's fault."""
ATTEMPT_FAILURES: Final = frozenset({"refused", "failed", "timeout"})
"""Failures among the outcomes of attempts."""
QUOTA_S: Final = 60.0
"""Seconds that a reported quota counts: providers report theirs by the minute."""


class ModelNames:
    """Names of one configuration revision. `serves(pool, model)`: whether engines report the model themselves."""

    def __init__(self, config: Config, serves: Callable[[str, str], bool]) -> None:
        self._pools = frozenset(config.pools)
        self._names = frozenset(config.model_names())
        self._by_target = {
            (model.pool, model.provider, model.served_as or name): name for name, model in config.models.items()
        }
        self._serves = serves

    def find_served(self, completed: ResponseCompleted) -> tuple[str, str]:
        """The pool, `-` without one, and the name by which requests and the configuration know the model that served,
        or was asked for."""
        pool = completed.pool if completed.pool in self._pools or completed.pool == NO_POOL else OTHER
        target = completed.target
        if target is None:
            return pool, completed.model if completed.model in self._names else OTHER
        return pool, self._by_target.get((target.pool, target.provider, target.model)) or self.name_of(target)

    def name_of(self, target: Target | Target) -> str:
        """The name of what serves."""
        name = self._by_target.get((target.pool, target.provider, target.model))
        if name is not None:
            return name
        known = target.model in self._names or (target.pool is not None and self._serves(target.pool, target.model))
        return target.model if known else OTHER


class _Slot:
    __slots__ = (
        "errors",
        "itl_count",
        "itl_ms",
        "number",
        "requests",
        "token_count",
        "tokens",
        "ttft_count",
        "ttft_ms",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.requests = self.errors = self.ttft_count = self.itl_count = self.token_count = 0
        self.ttft_ms = self.itl_ms = self.tokens = 0.0


class ModelWindow:
    """One model's completions of the last five minutes, and the latest limits that its provider reported."""

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque()
        self._limited_until = float("-inf")
        self._remaining: float | None = None
        self._remaining_at = 0.0

    def add_completion(self, completed: ResponseCompleted, now: float) -> None:
        """Count one completion."""
        slots = self._slots
        slot = slots[-1] if slots and slots[-1].number == now // SLOT_S else self._slot(now)
        slot.requests += 1
        if completed.outcome in FAILURES:
            slot.errors += 1
        if completed.outcome != "ok":
            return
        tokens = completed.usage.completion_tokens if completed.usage is not None else 0
        if completed.usage is not None:
            slot.tokens += tokens
            slot.token_count += completed.answers
        # Only a streamed answer's first byte is its first token, and only of the model that was asked first its time.
        if completed.stream and not completed.unused and completed.ttft_ms is not None:
            slot.ttft_ms += completed.ttft_ms
            slot.ttft_count += 1
            each = tokens / completed.answers
            if each > 1:
                slot.itl_ms += (completed.duration_ms - completed.ttft_ms) / (each - 1)
                slot.itl_count += 1

    def count_failed(self, attempt: Attempt, now: float) -> None:
        """Count a request that went on to another model. A provider that asks for a pause hasn't failed."""
        slot = self._slot(now)
        slot.requests += 1
        if attempt.outcome in ATTEMPT_FAILURES:
            slot.errors += 1

    def count_unused(self, answer: UnusedAnswer, answers: int, now: float) -> None:
        """Count the length of an answer that a cascade didn't give to the client; `count_failed` counts the request."""
        if answer.usage is not None and not answer.usage.estimated:
            slot = self._slot(now)
            slot.tokens += answer.usage.completion_tokens
            slot.token_count += answers

    def record_limit(self, attempt: Attempt, told_ms: int, now: float) -> None:
        """Record a provider's reported rate limit. `told_ms`: when the edge reported it, by the edge's clock, which may
        differ from this host's."""
        if attempt.limited_until_ms is not None:
            self._limited_until = max(self._limited_until, now + (attempt.limited_until_ms - told_ms) / 1000)
        if attempt.remaining is not None:
            self._remaining, self._remaining_at = attempt.remaining, now

    def build_statistics(self, model: str, now: float, *, source: str, sequence: int, at_ms: int) -> ModelStatistics:
        """The message of this model."""
        self._forget(int(now // SLOT_S))
        slots = self._slots
        pause_s = self._limited_until - now
        told = now - self._remaining_at < QUOTA_S
        return ModelStatistics(
            model=model,
            source=source,
            sequence=sequence,
            at_ms=at_ms,
            window_s=WINDOW_S,
            requests=sum(slot.requests for slot in slots),
            errors=sum(slot.errors for slot in slots),
            ttft_ms=_mean(sum(slot.ttft_ms for slot in slots), sum(slot.ttft_count for slot in slots)),
            itl_ms=_mean(sum(slot.itl_ms for slot in slots), sum(slot.itl_count for slot in slots)),
            output_tokens=_mean(sum(slot.tokens for slot in slots), sum(slot.token_count for slot in slots)),
            limited_until_ms=at_ms + round(pause_s * 1000) if pause_s > 0 else None,
            remaining=self._remaining if told else None,
        )

    def _slot(self, now: float) -> _Slot:
        number = int(now // SLOT_S)
        if not self._slots or self._slots[-1].number != number:
            self._slots.append(_Slot(number))
            self._forget(number)
        return self._slots[-1]

    def _forget(self, number: int) -> None:
        oldest = number - int(WINDOW_S / SLOT_S)
        while self._slots and self._slots[0].number <= oldest:
            self._slots.popleft()


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 3) if count else None
