"""From the end of a request to the work of engines for it. Pure.

The time of a request without usage is known, and of no client. So is that of attempts that failed before another engine
answered.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from pointsman_contracts.journey import Target
from pointsman_contracts.pool import EnginePrice
from pointsman_contracts.response import ResponseCompleted, Usage
from pointsman_recorder.domain.numbers import calendar_ms

LONGEST_MS: Final = 86_400_000.0
"""The time of a longer request, or of one with a negative duration, is unknown."""
PERIOD_US: Final = 300_000_000
"""Engine time is divided by the periods of this length since 1970."""
_MOST_TOKENS: Final = 10**7
_SCALE: Final = 10**9
"""Paces are whole numbers, so that those of answers that have ended leave nothing behind in a sum."""
_SHORTEST_US: Final = 1000
_ESCALATED: Final = "escalated"


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """A time in which an engine worked on an answer, in unix microseconds."""

    pool: str
    engine: str
    from_us: int
    until_us: int
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Tokens that it computed. Unknown where both are 0: an engine computes one at least."""

    def find_pace(self, price: EnginePrice) -> int | None:
        """Weighted tokens for a time, in a unit of its own; None where they are unknown."""
        weight = self.prompt_tokens + price.output_weight * self.output_tokens
        if not weight:
            return None
        return max(1, int(weight * _SCALE) // max(_SHORTEST_US, self.until_us - self.from_us))

    def split_periods(self) -> Iterable[tuple[int, int, int]]:
        """Each period that it is in, with its beginning and end there."""
        last = max(self.from_us, self.until_us - 1) // PERIOD_US
        for period in range(self.from_us // PERIOD_US, last + 1):
            start = period * PERIOD_US
            yield period, max(self.from_us, start), min(self.until_us, start + PERIOD_US)


class AnswerWork(msgspec.Struct, frozen=True, gc=False):
    """The work of engines for one answer."""

    model: str
    stretches: tuple[Stretch, ...]
    estimated: bool = False


def works_of_end(end: ResponseCompleted) -> list[AnswerWork]:
    """The answers that engines worked on for a request: the client's, and those of a cascade that it didn't get."""
    if end.answered_by is not None or end.outcome == "routed":
        return []
    end_us = calendar_ms(end.at_ms) * 1000
    known = 0 <= end.duration_ms <= LONGEST_MS

    def at(ms: float) -> int:
        return end_us - round((end.duration_ms - min(max(ms, 0.0), end.duration_ms)) * 1000) if known else end_us

    def work(target: Target | None, worker: str, span: tuple[float, float], prompt: int = 0, output: int = 0) -> None:
        if target is not None and target.pool is not None:
            first, last = at(span[0]), at(span[1])
            found.append(
                Stretch(
                    pool=target.pool,
                    engine=worker,
                    from_us=first,
                    until_us=max(first, last),
                    prompt_tokens=prompt,
                    output_tokens=output,
                )
            )

    answers: list[AnswerWork] = []
    found: list[Stretch] = []
    for unused in end.unused or ():
        prompt, output = _tokens(unused.usage)
        work(unused.target, unused.worker, (unused.began_ms, unused.began_ms + unused.took_ms), prompt, output)
        answers.append(_answer(unused.served or unused.target.model, found, unused.usage))
        found = []
    if end.worker is None:
        return answers
    # Each attempt has its duration, and the last one ends with the request.
    attempts, began_ms = list(end.attempts), end.duration_ms
    if attempts and attempts[-1].worker == end.worker:
        began_ms -= attempts.pop().took_ms
    else:
        began_ms = end.decided_ms + sum(each.took_ms for each in attempts)
    first_ms = end.duration_ms if end.ttft_ms is None else max(began_ms, end.ttft_ms)
    prompt, output = _tokens(end.usage)
    if end.usage is None or not end.stream:
        work(end.target, end.worker, (began_ms, end.duration_ms), prompt, output)
    else:
        for leg in end.legs:
            if leg.outcome == "answered":
                work(end.target, leg.worker, (leg.began_ms, leg.began_ms + leg.took_ms), prompt)
                prompt = 1
        # An engine that continued a stream is charged for what it added, as the client is.
        engines = [*(seam.worker for seam in end.seams), end.worker]
        ends_ms = [first_ms, *(seam.at_ms for seam in end.seams), end.duration_ms]
        kept = [0, *(seam.kept_tokens for seam in end.seams), output]
        work(end.target, engines[0], (min(began_ms, first_ms), first_ms), prompt)
        for engine, span, (before, after) in zip(engines, pairwise(ends_ms), pairwise(kept), strict=True):
            work(end.target, engine, span, output=max(1, after - before))
    for attempt in () if end.seams else reversed(attempts):
        if attempt.outcome != _ESCALATED:
            work(attempt.target or end.target, attempt.worker, (began_ms - attempt.took_ms, began_ms))
        began_ms -= attempt.took_ms
    return [*answers, _answer(end.served or end.model or "", found, end.usage)]


def _answer(model: str, stretches: list[Stretch], usage: Usage | None) -> AnswerWork:
    return AnswerWork(model, tuple(stretches), usage is not None and (usage.estimated or usage.cached_unknown))


def _tokens(usage: Usage | None) -> tuple[int, int]:
    """Those of the prompt that weren't cached, and those of the answer."""
    if usage is None:
        return 0, 0
    prompt = usage.prompt_tokens - usage.cached_tokens
    return min(max(1, prompt), _MOST_TOKENS), min(max(1, usage.completion_tokens), _MOST_TOKENS)
