"""How full a pool is, by what engines report and by what is on the books."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.message import read_fields
from pointsman_contracts.scheduling import ReservationChange
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.plugins import Spec
from pointsman_plugins.scheduling.arrays import FEW
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.flow_control import SaturationDetector
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.ledger import Ledger
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.plugins.flow_control import flow_registries


class Pool:
    """A fleet at second 100, told things by name."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.ledger = Ledger(self.fleet, PrefixIndex())
        self.sequence = 0

    def join(self, name: str, role: str = "both", engine: str = "vllm") -> None:
        self.fleet.register(
            WorkerRegistration(
                worker=name, pool="p", url=f"http://{name}:1", role=role, engine=engine, boot_id="b", agent="a",
                version="1", registered_ms=0,
            )
        )  # fmt: skip

    def hear(self, name: str, at: float, **load: object) -> None:
        self.sequence += 1
        message = {"worker": name, "pool": "p", "boot_id": "b", "sequence": self.sequence, "at_ms": 0, **load}
        self.fleet.hear(read_fields(WorkerLoad, message), at)

    def send(self, name: str, count: int, at: float, prompt_tokens: int = 0, uncached: int = 0) -> None:
        worker = self.fleet.find(name)
        assert worker is not None
        for _ in range(count):
            self.sequence += 1
            change = ReservationChange(
                op="reserve",
                request_id=f"r{self.sequence}",
                worker=name,
                prompt_tokens=prompt_tokens,
                uncached_tokens=uncached,
            )
            self.ledger.put(Hold(change, worker, at), at)

    def saturation(self, detector: str, at: float = 100.0, **params: object) -> float:
        return self.by(made(detector, **params), at)

    def by(self, plugin: SaturationDetector, at: float = 100.0) -> float:
        self.fleet.refresh(at)
        return plugin.saturation(self.fleet, at)


def made(detector: str, **params: object) -> SaturationDetector:
    (plugin,) = flow_registries().detectors.build([Spec(detector, detector, params)])
    return plugin


@pytest.fixture
def pool() -> Pool:
    pool = Pool()
    for name in "ab":
        pool.join(name)
        pool.hear(name, 99.9)
    return pool


def test_utilization_is_the_mean_of_the_fuller_of_queue_and_cache(pool: Pool) -> None:
    pool.hear("a", 99.9, waiting=5, kv_usage=0.2)
    pool.hear("b", 99.9, waiting=1, kv_usage=0.4)
    assert pool.saturation("utilization") == pytest.approx((1.0 + 0.5) / 2)


@pytest.mark.parametrize("count", [2, 3, FEW + 1])
@pytest.mark.parametrize("lie", [{"waiting": 10**9}, {"waiting": 12}, {"kv_usage": 1.0, "waiting": 300}])
def test_a_pool_with_one_idle_engine_is_not_saturated_whatever_the_others_report(
    count: int, lie: dict[str, float]
) -> None:
    pool = Pool()
    for number in range(count):
        pool.join(f"w{number}")
        pool.hear(f"w{number}", 99.9, **(lie if number else {}))
    assert pool.saturation("utilization") == pytest.approx((count - 1) / count)
    for _ in range(101):
        pool.send("w1", 1, 100.0)
    assert pool.saturation("concurrency") == pytest.approx(1 / count)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_a_pool_is_saturated_only_when_each_engine_is(queues: list[int]) -> None:
    pool = Pool()
    for number, waiting in enumerate(queues):
        pool.join(f"w{number}")
        pool.hear(f"w{number}", 99.9, waiting=waiting)
    saturation = pool.saturation("utilization")
    assert (saturation >= 1.0) == (min(queues) >= 5)
    assert saturation >= 1.0 or saturation == pytest.approx(sum(min(1.0, each / 5) for each in queues) / len(queues))


@pytest.mark.parametrize("detector", ["utilization", "concurrency"])
def test_an_ejected_engine_is_no_room(pool: Pool, detector: str) -> None:
    pool.hear("b", 99.9, waiting=7)
    pool.send("b", 100, 100.0)
    assert pool.saturation(detector) < 1.0
    idle = pool.fleet.find("a")
    assert idle is not None
    idle.standing.eject_worker("it fails", 100.0)
    pool.fleet.judge(idle)
    assert pool.saturation(detector) >= 1.0
    assert pool.saturation(detector, at=101.0) >= 1.0, "a trial of it is due"


def test_an_engine_whose_load_is_unknown_does_not_count(pool: Pool) -> None:
    pool.hear("a", 99.9, load_unknown="its page is late")
    pool.hear("b", 99.9, waiting=7)
    assert pool.saturation("utilization") >= 1.0
    pool.hear("a", 99.95)
    assert pool.saturation("utilization") < 1.0


def test_a_worker_that_fell_silent_says_nothing_about_saturation(pool: Pool) -> None:
    pool.hear("a", 98.0, waiting=50)
    pool.hear("b", 99.9, waiting=1)
    assert pool.saturation("utilization") == pytest.approx(0.2)


def test_a_pool_that_is_not_heard_of_at_all_is_not_saturated(pool: Pool) -> None:
    pool.hear("a", 90.0, waiting=50, kv_usage=1.0)
    pool.hear("b", 90.0, waiting=50, kv_usage=1.0)
    assert pool.saturation("utilization") == 0.0


def test_a_draining_worker_is_no_capacity_and_no_saturation(pool: Pool) -> None:
    pool.hear("a", 99.9, waiting=50, state="draining")
    assert pool.saturation("utilization") == 0.0


def test_requests_sent_since_the_report_join_the_queue_that_it_shows(pool: Pool) -> None:
    pool.hear("a", 99.9, waiting=1, running=8)
    pool.send("a", 4, 100.0)
    assert pool.saturation("utilization") == pytest.approx((1.0 + 0.0) / 2)


def test_an_engine_with_an_empty_queue_takes_a_burst_before_it_counts(pool: Pool) -> None:
    pool.hear("a", 99.9, running=100)
    pool.send("a", 25, 100.0, uncached=20_000)
    assert pool.saturation("utilization") == 0.0
    pool.send("a", 5, 100.0, uncached=20_000)
    assert pool.saturation("utilization") == pytest.approx((1.0 + 0.0) / 2)


def test_short_prompts_that_share_one_pass_fill_no_queue(pool: Pool) -> None:
    pool.hear("a", 99.9)
    pool.send("a", 256, 100.0, uncached=32)
    assert pool.saturation("utilization") == 0.0
    pool.send("a", 256, 100.0, uncached=32)
    assert pool.saturation("utilization") == pytest.approx((1.0 + 0.0) / 2)


def test_a_pool_is_as_full_as_its_fuller_stage() -> None:
    pool = Pool()
    for name, role, waiting in (("p", "prefill", 10), ("d1", "decode", 0), ("d2", "decode", 1), ("e", "encode", 99)):
        pool.join(name, role)
        pool.hear(name, 99.9, waiting=waiting)
    assert pool.saturation("utilization") == pytest.approx(2.0)


@pytest.mark.parametrize("detector", ["utilization", "concurrency"])
def test_a_worker_that_joins_counts_from_its_first_report(pool: Pool, detector: str) -> None:
    kept = made(detector)
    assert pool.by(kept) == 0.0
    pool.join("c", "prefill")
    pool.hear("c", 99.9, waiting=9)
    pool.send("c", 10, 99.0)
    assert pool.by(kept) == pool.saturation(detector) > 0.0


@pytest.mark.parametrize("times", [1, FEW])
def test_many_workers_are_judged_as_few_are(times: int) -> None:
    pool = Pool()
    for number in range(times):
        for kind, role, engine in (("d", "decode", "vllm"), ("s", "decode", "vllm"), ("o", "decode", "opaque")):
            pool.join(f"{kind}{number}", role, engine)
        pool.join(f"p{number}", "prefill")
        pool.hear(f"s{number}", 98.0, waiting=500)
        pool.hear(f"d{number}", 99.9, waiting=4, kv_usage=0.2)
        pool.hear(f"o{number}", 99.9)
        pool.send(f"o{number}", 100, 99.0)
        pool.hear(f"p{number}", 99.9, running=100)
        pool.send(f"p{number}", 28, 100.0, uncached=20_000)
    assert pool.saturation("utilization") == pytest.approx(0.8)


def test_concurrency_counts_what_is_on_the_books_whatever_was_reported(pool: Pool) -> None:
    pool.hear("a", 10.0, waiting=500)
    pool.send("a", 6, 100.0, prompt_tokens=1000)
    pool.send("b", 2, 100.0, prompt_tokens=4000)
    assert pool.saturation("concurrency", max_requests=10) == pytest.approx(8 / 20)
    tokens = pool.saturation("concurrency", mode="tokens", max_tokens=10_000)
    assert tokens == pytest.approx(14_000 / 20_000)
    hybrid = pool.saturation("concurrency", mode="hybrid", max_requests=10, max_tokens=10_000)
    assert hybrid == pytest.approx((0.6 + 0.8) / 2)


def test_workers_that_tell_no_load_are_counted_by_the_books_and_never_saturate_by_utilization(pool: Pool) -> None:
    for name in "ab":
        pool.join(name, engine="opaque")
        pool.hear(name, 99.9)
    pool.send("a", 40, 99.0, prompt_tokens=4000, uncached=4000)
    pool.hear("a", 99.95)
    pool.fleet.refresh(100.0)
    assert pool.fleet.waiting.tolist() == [40, 0], "a report of nothing takes nothing off the books"
    worker = pool.fleet.find("a")
    assert worker is not None
    assert worker.surplus_since < 0, "nor does it say that the books hold too much"
    assert pool.saturation("utilization") == 0.0
    assert pool.saturation("concurrency", max_requests=40) == pytest.approx(0.5)


@pytest.mark.parametrize("detector", ["utilization", "concurrency"])
def test_a_sleeping_worker_has_no_room_for_the_requests_of_one_that_is_full(detector: str) -> None:
    pool = Pool()
    for name in ("awake", "asleep"):
        pool.join(name)
    pool.hear("awake", 100.0, waiting=50, running=50)
    pool.hear("asleep", 100.0, state="asleep")
    pool.send("awake", 2, 100.0)
    params = {"max_requests": 2} if detector == "concurrency" else {}
    assert pool.saturation(detector, **params) >= 1
