"""Answers that may be an engine's fault or their requests': the engine is compared with its peers, twice."""

import random
from collections.abc import Callable

import pytest

from pointsman_scheduler.domain.doubted_workers import DOUBTS
from pointsman_testing.scheduler_bench import Bench

AT_RANDOM = {"scorers": [{"use": "least-delay"}], "picker": "random"}


class Pool:
    """Engines that answer at once. `doubted`: whether this request of a client's has such an answer at this engine."""

    def __init__(self, *names: str, settings: dict[str, object] | None = None) -> None:
        self.bench = Bench(settings or AT_RANDOM)
        self.bench.join(*names)
        self.asked = 0
        self.out: dict[str, float] = dict.fromkeys(names, 0.0)
        """For how long each was ejected."""

    def run(self, seconds: float, doubted: Callable[[str], str], rate: float = 20.0, **facts: object) -> None:
        until = self.bench.now + seconds
        while self.bench.now < until:
            self.ask(doubted, **facts)
            self.pass_time(1.0 / rate)

    def pass_time(self, seconds: float) -> None:
        self.bench.now += seconds
        for worker in self.bench.pool.fleet.ejected:
            self.out[worker.name] += seconds
        for name in self.out:
            self.bench.hear(name)

    def ask(self, doubted: Callable[[str], str], **facts: object) -> str:
        self.asked += 1
        request = self.bench.request(**facts)
        name = self.bench.decide(request, seed=self.asked).endpoints[0].name
        books = self.bench.pool.books
        books.started(request.key, name, 5.0, self.bench.now)
        books.completed(request.key, self.bench.now, True, 9, 1.0, name, ending=doubted(name))
        return name

    @property
    def ejected(self) -> set[str]:
        return {worker.name for worker in self.bench.pool.fleet.ejected}


@pytest.mark.parametrize("doubt", DOUBTS)
@pytest.mark.parametrize("sick", ["a", "ab"])
def test_engines_that_alone_have_such_answers_are_ejected_and_come_back_once_they_are_well(
    doubt: str, sick: str
) -> None:
    pool = Pool(*"abcd")
    pool.run(3.0, lambda _: "")
    pool.run(5.0, lambda name: doubt if name in sick else "")
    assert pool.ejected == {*sick}
    (first, *_) = pool.bench.pool.outliers.verdicts(pool.bench.now)
    assert DOUBTS[doubt] in first.reason
    pool.run(10.0, lambda _: "")
    assert not pool.ejected


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("engines", [2, 3, 8])
def test_no_engine_is_ejected_for_long_where_requests_have_such_answers_at_every_engine(
    share: float, engines: int
) -> None:
    chance = random.Random(7)
    pool = Pool(*"abcdefgh"[:engines])
    pool.run(40.0, lambda _: "empty" if chance.random() < share else "")
    assert max(pool.out.values()) <= 0.25 * 40.0


@pytest.mark.parametrize("doubt", DOUBTS)
@pytest.mark.parametrize("engines", [2, 3, 8])
def test_a_client_whose_requests_all_have_such_answers_takes_no_engine_from_the_others(
    doubt: str, engines: int
) -> None:
    """They go to the engine that has their prefix, or to the next one while it is ejected."""
    names = "abcdefgh"[:engines]
    pool = Pool(*names)
    for _ in range(600):
        out = pool.ejected
        home = min(each for each in names if each not in out)
        pool.ask(lambda _: doubt, workers=(home,))
        pool.ask(lambda _: "")
        pool.pass_time(0.05)
    assert sum(pool.out.values()) <= 0.2 * 30.0


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_sick_engine_stays_out_though_clients_of_its_peers_err_too(doubt: str) -> None:
    chance = random.Random(7)
    pool = Pool(*"abc")
    pool.run(20.0, lambda name: doubt if name == "a" or chance.random() < 0.05 else "")
    assert pool.out["a"] >= 15.0
    assert pool.out["b"] + pool.out["c"] <= 4.0


def test_an_only_engine_is_never_ejected_for_such_answers() -> None:
    pool = Pool("a")
    pool.run(20.0, lambda _: "repeating")
    assert not pool.out["a"]
    (verdict,) = pool.bench.pool.outliers.verdicts(pool.bench.now)
    assert verdict.verdict == "failing"
    assert DOUBTS["repeating"] in verdict.reason
