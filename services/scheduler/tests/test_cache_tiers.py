"""Blocks below engines' devices: which engine has them where, and what that is worth to a decision."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pointsman_contracts.kv import KvChange, KvTier, WorkerKvEvents, WorkerKvState
from pointsman_contracts.message import Blob
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.kv_following import KvFollower, Told
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.domain.prefix_index.below import MOST_STORES
from pointsman_scheduler.plugins.producers.delay import DelayPrediction
from pointsman_testing.scheduler_bench import BLOCK_TOKENS, LIFE, Bench, explained

SHARED: Final = "store:fleet"
TIERS: Final = ("host", "disk", "store", SHARED)


def array(blocks: Sequence[int]) -> NDArray[np.uint64]:
    return np.array(blocks, dtype=np.uint64)


def packed(blocks: Sequence[int]) -> Blob:
    return Blob(array(blocks).tobytes())


def fetched(index: PrefixIndex, blocks: Sequence[int]) -> dict[str, list[float]]:
    """For each tier, the blocks that each worker would fetch; tiers that no worker would fetch from are left out."""
    asked = array(blocks)
    found = index.match_below(asked, 1, index.match(asked)) or {}
    return {tier: column.tolist() for tier, column in found.items()}


def two_engines() -> tuple[PrefixIndex, int, int]:
    index = PrefixIndex()
    first, second = index.join(), index.join()
    index.lay_out([first, second])
    return index, first, second


@pytest.mark.requirement("TIERS-1")
def test_a_removal_from_one_tier_leaves_the_others() -> None:
    index, first, _ = two_engines()
    index.stored(first, array([1, 2]), 1.0)
    index.store_below(first, "host", array([1, 2, 3]), 1.0)
    index.store_below(first, "disk", array([3, 4]), 1.0)
    assert fetched(index, [1, 2, 3, 4, 5]) == {"host": [1, 0], "disk": [1, 0]}
    index.removed(first, array([1, 2]), 2.0)
    assert fetched(index, [1, 2, 3, 4, 5]) == {"host": [3, 0], "disk": [1, 0]}
    index.remove_below(first, "host", array([3]), 3.0)
    assert fetched(index, [1, 2, 3, 4, 5]) == {"host": [2, 0], "disk": [2, 0]}
    assert index.count_below() == {"host": 2, "disk": 2}


def test_a_block_in_a_shared_store_counts_for_every_engine_that_reaches_it() -> None:
    index, first, second = two_engines()
    index.store_below(first, SHARED, array([1, 2]), 1.0)
    assert fetched(index, [1, 2]) == {SHARED: [2, 0]}
    index.store_below(second, SHARED, array([]), 1.0)
    assert fetched(index, [1, 2]) == {SHARED: [2, 2]}
    index.forget(first)
    index.lay_out([second])
    assert fetched(index, [1, 2]) == {SHARED: [2]}
    index.remove_below(second, SHARED, array([2]), 2.0)
    assert fetched(index, [1, 2]) == {SHARED: [1]}
    index.clear_below(second, SHARED)  # an engine's clearing isn't the store's
    assert index.count_below() == {SHARED: 1}


def test_tiers_that_are_unknown_and_stores_without_end_are_passed_over() -> None:
    index, first, second = two_engines()
    index.store_below(first, "hologram", array([1]), 1.0)
    for number in range(MOST_STORES + 9):
        index.store_below(first, f"store:{number}", array([1]), 1.0)
    assert len(index.count_below()) == MOST_STORES
    index.store_below(999, "host", array([1]), 1.0)
    assert "host" not in index.count_below()
    index.forget(first)
    index.store_below(second, "store:new", array([1]), 2.0)  # takes the place of one that no worker reaches
    assert "store:new" in index.count_below()


def test_a_block_in_two_tiers_takes_no_more_room_in_the_table_than_one() -> None:
    index, first, _ = two_engines()
    index.stored(first, array(range(1, 1001)), 1.0)
    before = index.memory().blocks
    index.store_below(first, "host", array(range(1, 1001)), 1.0)
    assert index.memory().blocks == before


OPS: Final = st.tuples(
    st.sampled_from(["", *TIERS]), st.integers(0, 2), st.sampled_from(["stored", "stored", "removed", "cleared"]),
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(ops=st.lists(OPS, max_size=30), prompt=st.lists(st.integers(1, 8), min_size=1, max_size=8, unique=True))
def test_an_engine_fetches_what_follows_its_devices_blocks_from_the_fastest_tier_that_has_it(
    ops: Sequence[tuple[str, int, str, list[int]]], prompt: list[int]
) -> None:
    index = PrefixIndex()
    lives = [index.join() for _ in range(3)]
    index.lay_out(lives)
    model: dict[tuple[int, str], set[int]] = {}
    shared: set[int] = set()
    reaching: set[int] = set()
    for at, (tier, engine, op, blocks) in enumerate(ops):
        life = lives[engine]
        if tier == SHARED:
            if op == "stored":
                index.store_below(life, tier, array(blocks), float(at))
                shared |= set(blocks)
                reaching.add(engine)
            elif op == "removed" and engine in reaching:
                index.remove_below(life, tier, array(blocks), float(at))
                shared -= set(blocks)
            continue
        held = model.setdefault((engine, tier), set())
        if op == "stored":
            held |= set(blocks)
            (index.store_below(life, tier, array(blocks), float(at))) if tier else (
                index.stored(life, array(blocks), float(at))
            )
        elif op == "removed":
            held -= set(blocks)
            (index.remove_below(life, tier, array(blocks), float(at))) if tier else (
                index.removed(life, array(blocks), float(at))
            )
        else:
            held.clear()
            index.clear_below(life, tier) if tier else index.retold(life, array([]), float(at))
    expected: dict[str, list[float]] = {}
    for engine in range(3):
        place = 0
        while place < len(prompt) and prompt[place] in model.get((engine, ""), ()):
            place += 1
        while place < len(prompt):
            has = [tier for tier in TIERS[:3] if prompt[place] in model.get((engine, tier), ())]
            has += [SHARED] if engine in reaching and prompt[place] in shared else []
            if not has:
                break
            expected.setdefault(has[0], [0.0, 0.0, 0.0])[engine] += 1.0
            place += 1
    assert fetched(index, prompt) == expected


def test_a_snapshot_sets_the_tiers_and_later_changes_go_on_from_it() -> None:
    follower = KvFollower()
    event = {"worker": "w", "pool": "p", "boot_id": "b", "agent": "a", "at_ms": 0, "block_tokens": 64}
    follower.hear(WorkerKvEvents(**event, sequence=7))  # pyright: ignore[reportArgumentType] - fields of the message
    question = follower.question(10.0)
    assert question is not None
    assert question.tiers
    told = follower.receive_answer(
        WorkerKvState(
            boot_id="b", agent="a", sequence=7, snapshot=True, held=packed([1, 2, 3]), total=3,
            tiers=(KvTier(tier="host", blocks=2), KvTier(tier=SHARED, blocks=0)),
        )
    )  # fmt: skip
    assert told.everything == packed([1])
    assert [(change.op, bytes(change.blocks)) for change in told.changes] == [
        ("cleared@host", b""), ("stored@host", packed([2, 3])),
        (f"cleared@{SHARED}", b""), (f"stored@{SHARED}", b""),
    ]  # fmt: skip


def lay_below(bench: Bench, worker: str, tier: str, blocks: Sequence[int]) -> None:
    """An engine has these blocks in a tier below its device."""
    bench.pool.hear_kv(worker, LIFE, Told(None, (KvChange(op=f"stored@{tier}", blocks=packed(blocks)),)), True, 1.0)


def delay_of(bench: Bench) -> DelayPrediction:
    (delay,) = [each for each in bench.policy.producers if isinstance(each, DelayPrediction)]
    return delay


ADAPTERS: Final = ("sql", *(f"new-{number}" for number in range(30)))


def trusted(names: int = 3, policy: Mapping[str, object] | None = None) -> Bench:
    """Idle engines, by a model that knows how long their passes take: 15 ms for 1,000 prompt tokens."""
    bench = Bench(policy or {"scorers": ["least-delay"]})
    bench.join(*(f"w{number}" for number in range(names)), loras=ADAPTERS)
    model = delay_of(bench).estimator.best.model
    rng = np.random.default_rng(0)
    for _ in range(200):
        tokens, batch = rng.uniform(0.0, 8.0), float(rng.integers(1, 50))
        passed = np.array([1.0, tokens, tokens**2, 0.0, 1.0, batch, 0.01 * batch])
        model.learn_pass(passed, 22.0 + 15.0 * tokens + 0.4 * tokens**2 + 0.5 * batch, 5.0)
    assert model.is_trusted
    return bench


PROMPT: Final = 100
"""Blocks."""


def blocks_of(bench: Bench) -> list[int]:
    return bench.prompt(1, PROMPT).blocks.tolist()


def test_the_engine_that_fetches_is_chosen_before_those_that_would_compute() -> None:
    bench = trusted()
    lay_below(bench, "w2", "host", blocks_of(bench))
    outcome = bench.decide(bench.prompt(1, PROMPT))
    assert outcome.endpoints[0].name == "w2"
    change = outcome.holds[0].change
    assert change.fetched == {"host": PROMPT * BLOCK_TOKENS}
    assert change.uncached_tokens == 0
    assert outcome.cached_tokens == PROMPT * BLOCK_TOKENS


def test_a_copy_on_a_device_goes_before_one_in_host_memory_and_that_before_one_on_a_disk() -> None:
    bench = trusted(3)
    everything = blocks_of(bench)
    for worker, tier in (("w0", "disk"), ("w1", "host")):
        lay_below(bench, worker, tier, everything)
    assert bench.chosen(bench.prompt(1, PROMPT)) == "w1"
    bench = trusted(3)
    for worker, tier in (("w0", "disk"), ("w1", "host")):
        lay_below(bench, worker, tier, everything)
    bench.pool.hear_kv("w2", LIFE, Told(packed(everything)), True, 1.0)
    assert bench.chosen(bench.prompt(1, PROMPT)) == "w2"


def test_a_fetch_that_takes_longer_than_the_prompt_is_no_reason_to_go_there() -> None:
    bench = trusted(2)
    lay_below(bench, "w1", "store", blocks_of(bench))
    preludes = delay_of(bench).preludes
    for _ in range(40):
        preludes.fetches.learn_fetch("store", 1000.0, 500.0, 10.0)
    assert bench.chosen(bench.prompt(1, PROMPT)) == "w0"


@pytest.mark.parametrize("true_ms", [0.001, 0.004, 0.05])
def test_the_time_of_a_fetch_is_learnt_from_first_tokens(true_ms: float) -> None:
    bench = trusted(1)
    delay = delay_of(bench)
    for turn in range(60):
        family = 100 + turn
        lay_below(bench, "w0", "host", bench.prompt(family, PROMPT).blocks.tolist())
        request = bench.prompt(family, PROMPT)
        bench.decide(request)
        rates = delay.estimator.best.model.rates
        ttft_ms = rates.prefill + rates.linear + true_ms * PROMPT * BLOCK_TOKENS
        bench.now += ttft_ms / 1000.0
        bench.pool.books.started(request.key, "w0", ttft_ms, bench.now)
        bench.pool.books.completed(request.key, bench.now, ok=True)
        bench.now += 1.0
    assert delay.preludes.fetches.per_token("host") == pytest.approx(true_ms, rel=0.25)


def test_what_is_learnt_of_a_fetch_stays_within_bounds_whatever_is_observed() -> None:
    fetches = delay_of(trusted(1)).preludes.fetches
    for took in (0.0, 1e12, 1e12, 0.0, float(2**40)) * 50:
        fetches.learn_fetch("host", 100.0, took, 5.0)
        assert 0.0026 / 65 < fetches.per_token("host") < 0.0026 * 65


def test_a_request_that_fetches_is_in_the_engines_queue_only_after_it() -> None:
    bench = trusted(1)
    estimator = delay_of(bench).estimator.best
    lay_below(bench, "w0", "disk", blocks_of(bench))
    request = bench.prompt(1, PROMPT, own_blocks=10)
    bench.decide(request)
    assert estimator.request((*request.key, "")) is None
    bench.now += 0.026 * PROMPT * BLOCK_TOKENS / 1000.0 + 0.001
    bench.decide(bench.prompt(2, 1))
    assert estimator.request((*request.key, "")) is not None
    bench.pool.books.completed(request.key, bench.now, ok=False)
    assert estimator.request((*request.key, "")) is None


def test_a_request_that_leaves_during_its_fetch_is_nowhere_afterwards() -> None:
    bench = trusted(1)
    estimator = delay_of(bench).estimator.best
    lay_below(bench, "w0", "disk", blocks_of(bench))
    request = bench.prompt(1, PROMPT, own_blocks=10)
    bench.decide(request)
    bench.pool.books.completed(request.key, bench.now, ok=False)
    bench.now += 60.0
    bench.decide(bench.prompt(2, 1))
    assert estimator.request((*request.key, "")) is None


def adapter_request(bench: Bench, name: str) -> tuple[str, Callable[[float], None]]:
    """Decide a request for an adapter. Returns its worker, and a call that answers it after these milliseconds."""
    request = bench.request(lora=name, prompt_tokens=200)
    worker = bench.chosen(request)

    def answer(ttft_ms: float) -> None:
        bench.now += ttft_ms / 1000.0
        bench.pool.books.started(request.key, worker, ttft_ms, bench.now)
        bench.pool.books.completed(request.key, bench.now, ok=True)
        bench.now += 1.0

    return worker, answer


def test_an_engine_that_used_an_adapter_lately_has_it_and_how_long_a_load_takes_is_learnt() -> None:
    """vLLM reports adapters with requests only: an idle one looks absent (llm-d-router #2605)."""
    bench = trusted(3)
    rates = delay_of(bench).estimator.best.model.rates
    pass_ms = rates.prefill + rates.linear * 200
    assert delay_of(bench).preludes.adapters.predict_load("sql") == 0.0, "unknown, so it decides nothing"
    first, answer = adapter_request(bench, "sql")
    answer(400.0 + pass_ms)
    for _ in range(5):
        worker, answer = adapter_request(bench, "sql")
        assert worker == first
        answer(pass_ms)
    adapters = delay_of(bench).preludes.adapters
    for number in range(30):
        _, answer = adapter_request(bench, f"new-{number}")
        answer(400.0 + pass_ms)
    assert adapters.predict_load("never-seen") == pytest.approx(400.0, rel=0.2)


@pytest.mark.parametrize("load_ms", [200.0, 400.0, 800.0])
def test_loads_that_take_other_than_predicted_teach_nothing_about_passes(load_ms: float) -> None:
    """The pass after a load began at an unknown time. Taken to have begun with the first token, it seemed to take none,
    and the model wasn't trusted any more."""
    bench = trusted(3)
    model = delay_of(bench).estimator.best.model
    rates = model.rates
    for number in range(30):
        _, answer = adapter_request(bench, f"new-{number}")
        answer((400.0 if number < 5 else load_ms) + rates.prefill + rates.linear * 200)
    assert model.is_trusted
    assert model.rates.passes_ms(1000.0, 8192.0) == pytest.approx(rates.passes_ms(1000.0, 8192.0), rel=0.2)
    assert delay_of(bench).preludes.adapters.predict_load("never-seen") == pytest.approx(load_ms, rel=0.2)


def test_a_load_that_takes_long_is_worth_a_wait_and_a_short_one_is_not() -> None:
    def chosen(load_ms: float) -> str:
        bench = trusted(2)
        adapters = delay_of(bench).preludes.adapters
        for _ in range(50):
            adapters.learn_load("sql", load_ms, 1.0)
        adapters.note_use(next(worker.life for worker in bench.pool.fleet if worker.name == "w0"), "sql", 4)
        for number in range(3):
            bench.place(bench.request(request_id=f"busy-{number}", prompt_tokens=4000), "w0")
        return bench.chosen(bench.request(lora="sql", prompt_tokens=400))

    assert chosen(1500.0) == "w0"
    assert chosen(1.0) == "w1"


def test_the_explanation_has_the_tokens_that_each_candidate_would_fetch_and_the_time_at_the_chosen_one() -> None:
    bench = trusted(2)
    lay_below(bench, "w1", "host", blocks_of(bench)[:50])
    outcome = bench.decide(bench.prompt(1, PROMPT))
    runs, _ = explained(outcome)
    columns = runs[0].candidates
    tokens = 50 * BLOCK_TOKENS
    assert dict(zip(columns.workers, columns.fetched_tokens, strict=True)) == {"w0": 0, "w1": tokens}
    hold = outcome.holds[0]
    assert hold.fetch_ms == pytest.approx(0.0026 * tokens)
    few = explained(outcome, 1)[0][0].candidates
    assert few.fetched_tokens == ({"w0": 0, "w1": tokens}[few.workers[0]],)


def source(bench: Bench, request: ScheduleRequest | None = None) -> tuple[str, str | None]:
    """The chosen worker, and the value of the header that names the source of a pull."""
    request = request or bench.prompt(1, PROMPT)
    outcome = bench.decide(request)
    bench.pool.books.completed(request.key, bench.now, ok=False)  # nothing is believed of its own prompt
    [header] = [edit for edit in outcome.headers if edit.name == "x-kv-cache-source-host-port"]
    return outcome.endpoints[0].name, header.value


PULLING: Final = {"scorers": ["queue"], "pre-request": ["destination-header", "cache-source-header"]}


def test_the_engine_that_has_most_of_the_prompt_is_named_as_the_source_of_a_pull() -> None:
    bench = Bench(PULLING)
    bench.join("w0", "w1", "w2")
    bench.hear("w1", waiting=9, sequence=2)
    bench.hear("w2", waiting=9, sequence=2)
    everything = blocks_of(bench)
    assert source(bench) == ("w0", None)
    bench.pool.hear_kv("w1", LIFE, Told(packed(everything[:40])), True, 1.0)
    lay_below(bench, "w2", "host", everything[:60])
    lay_below(bench, "w0", "disk", everything[:10])
    [address] = [worker.address for worker in bench.pool.fleet if worker.name == "w2"]
    chosen, value = source(bench)
    assert (chosen, value) == ("w0", address)


def test_an_engine_is_not_told_to_pull_what_it_has_itself_or_from_one_that_does_not_serve() -> None:
    bench = Bench(PULLING)
    bench.join("w0", "w1")
    bench.hear("w1", waiting=9, sequence=2)
    everything = blocks_of(bench)
    bench.pool.hear_kv("w1", LIFE, Told(packed(everything)), True, 1.0)
    lay_below(bench, "w0", "host", everything)
    assert source(bench) == ("w0", None)
    bench.pool.hear_kv("w0", LIFE, Told(None, (KvChange(op="cleared@host"),)), True, 1.0)
    assert source(bench)[1] is not None
    bench.hear("w1", state="not_ready", sequence=3)
    assert source(bench) == ("w0", None)
