"""How many tokens a pass takes is found out from when answers begin."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pointsman_delay import DelayEstimator, PassSizeSearch


@dataclass
class Prefill:
    """An engine that computes prompts, `batch_tokens` a pass, at a known speed, and answers with one token."""

    batch_tokens: int
    scale: float = 1.0
    waiting: deque[tuple[str, int]] = field(default_factory=deque[tuple[str, int]])
    """Requests with the tokens that no pass has taken up."""
    finishing: list[str] = field(default_factory=list[str])
    ends: float | None = None
    """When the pass in flight ends."""

    def submit(self, key: str, tokens: int, now: float) -> None:
        self.waiting.append((key, tokens))
        if self.ends is None:
            self.begin(now)

    def begin(self, now: float) -> None:
        room = self.batch_tokens
        while self.waiting and room:
            key, left = self.waiting.popleft()
            taken = min(left, room)
            room -= taken
            if taken < left:
                self.waiting.appendleft((key, left - taken))
            else:
                self.finishing.append(key)
        self.ends = now + self.scale * (12.0 + 0.015 * (self.batch_tokens - room))

    def run(self, until: float) -> list[tuple[float, str]]:
        """First tokens until then."""
        answers: list[tuple[float, str]] = []
        while self.ends is not None and self.ends <= until:
            ended, self.ends = self.ends, None
            answers += [(ended, key) for key in self.finishing]
            self.finishing.clear()
            if self.waiting:
                self.begin(ended)
        return answers


def replay(search: PassSizeSearch, engines: list[Prefill], requests: int, gap_ms: float, seed: int = 0) -> None:
    """Prompts of very different lengths, to each engine in turn."""
    search.lay_out([(life, 1e6) for life in range(len(engines))])
    rng, now, answers = np.random.default_rng(seed), 0.0, list[tuple[float, str]]()
    for number in range(requests):
        now += float(rng.exponential(gap_ms))
        answers = sorted(answer for engine in engines for answer in engine.run(now))
        for at, key in answers:
            search.started(key, at)
            search.ended(key, at, 1)
        life, tokens = number % len(engines), int(min(30_000, rng.lognormal(7.5, 1.3))) + 1
        engines[life].submit(str(number), tokens, now)
        search.sent(life, str(number), now, tokens, 0)


@pytest.mark.parametrize("batch_tokens", [1024, 4096, 8192, 16384])
def test_the_size_that_explains_the_answers_is_found(batch_tokens: int) -> None:
    search = PassSizeSearch(8192, 16.0)
    replay(search, [Prefill(batch_tokens) for _ in range(2)], 8000, gap_ms=80.0)
    assert batch_tokens / 2 <= search.best.batch_tokens <= batch_tokens * 2
    assert search.best.model.relative_error < 0.15


@pytest.mark.parametrize("seed", range(5))
def test_engines_whose_answers_fit_no_size_are_rarely_followed_twice(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, followed = 30_000, 0
    send = DelayEstimator.sent

    def counted(*arguments: Any, **options: Any) -> None:
        nonlocal followed
        followed += 1
        send(*arguments, **options)

    monkeypatch.setattr(DelayEstimator, "sent", counted)
    search = PassSizeSearch(8192, 16.0)
    search.lay_out([(0, 1e6)])
    rng, now = np.random.default_rng(seed), 0.0
    for number in range(requests):
        now += float(rng.exponential(20.0))
        search.sent(0, str(number), now, int(rng.integers(50, 3000)), 0)
        search.started(str(number), now + float(rng.lognormal(2.0, 0.6)))
        search.ended(str(number), now + 29.0, 1)
    assert followed < 1.4 * requests


def test_an_error_common_to_all_engines_changes_no_engines_speed() -> None:
    search = PassSizeSearch(8192, 16.0)
    replay(search, [Prefill(8192, scale=3.0) for _ in range(3)], 2000, gap_ms=150.0)
    assert search.best.speeds == pytest.approx([1.0, 1.0, 1.0], abs=0.15)


def test_an_engine_that_is_slower_than_the_others_is_known_as_such() -> None:
    search = PassSizeSearch(8192, 16.0)
    replay(search, [Prefill(8192, scale=0.8), Prefill(8192, scale=1.6)], 3000, gap_ms=150.0)
    fast, slow = search.best.speeds
    assert slow / fast == pytest.approx(2.0, rel=0.25)


def test_a_successor_knows_how_long_answers_are() -> None:
    former, successor = DelayEstimator(8192, 16.0), DelayEstimator(1024, 16.0)
    former.lay_out([(0, 1e6)])
    for number in range(50):
        former.sent(0, str(number), float(number), 100, 0)
        former.ended(str(number), number + 0.5, 900)
    successor.inherit_learning(former)
    assert successor.expected_output == former.expected_output > 500.0
