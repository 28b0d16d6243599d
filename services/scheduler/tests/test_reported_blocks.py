"""Blocks that engines report, in columns: the same as sets of blocks, one for each engine."""

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.domain.prefix_index.block_table import SPLIT, BlockTable

ENGINES = 5
INVERSE = pow(0x9E3779B97F4A7C15, -1, 2**64)


def array(blocks: list[int]) -> NDArray[np.uint64]:
    return np.array(blocks, dtype=np.uint64)


def crowded(number: int) -> int:
    """A hash of the bucket that all of these hashes have, however large the table is."""
    return ((number << 44 | 7 << 20 | number) * INVERSE) % 2**64


BLOCKS = st.lists(st.integers(0, 40), min_size=1, max_size=30)
"""0 can't be kept. Some come twice in one report."""
REPORTS = st.lists(
    st.tuples(
        st.integers(0, ENGINES - 1), st.sampled_from(["stored", "stored", "removed", "retold", "restart"]), BLOCKS
    ),
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(reports=REPORTS, spread=st.sampled_from(["small", "random", "crowded"]), look=st.integers(1, 9))
def test_any_reports_in_any_batches_leave_each_engine_with_what_it_said(
    reports: list[tuple[int, str, list[int]]], spread: str, look: int
) -> None:
    shuffled = np.random.default_rng(3).integers(1, 2**64, 41, dtype=np.uint64).tolist()
    hashes = {"small": list(range(41)), "random": shuffled, "crowded": [crowded(n) for n in range(41)]}[spread]
    hashes[0] = 0
    index = PrefixIndex()
    lives = [index.join() for _ in range(ENGINES)]
    index.lay_out(lives)
    model: dict[int, set[int]] = defaultdict(set)
    for turn, (engine, what, numbers) in enumerate(reports):
        blocks = {hashes[number] for number in numbers}
        if what == "restart":
            index.forget(lives[engine])
            lives[engine] = index.join()
            index.lay_out(lives)
            model[engine] = set()
        else:
            getattr(index, what)(lives[engine], array([hashes[number] for number in numbers]), float(turn))
            if what == "retold":
                model[engine] = blocks - {0}
            elif what == "stored":
                model[engine] |= blocks - {0}
            else:
                model[engine] -= blocks
        if turn % look == 0 or turn == len(reports) - 1:
            for block in hashes:
                expected = [float(block in model[engine]) for engine in range(ENGINES)]
                assert index.match(array([block])).tolist() == expected
            held = [index.held(life) for life in lives]
            assert held == [len(model[engine]) for engine in range(ENGINES)]
            while index.sweep(float(turn)):
                pass
            known = index.memory()
            assert known.holdings == sum(held)
            assert known.blocks == len(set[int]().union(*model.values()))
            told = [set(index.dump(life, float(turn)).hashes.tolist()) for life in lives]
            assert told == [model[engine] for engine in range(ENGINES)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), shared=st.booleans())
def test_a_table_that_grows_and_shrinks_finds_what_a_dictionary_does(seed: int, *, shared: bool) -> None:
    rng = np.random.default_rng(seed)
    table, model = BlockTable(reserved=SPLIT), dict[int, int]()
    pool = rng.integers(1, 2**64, 6000, dtype=np.uint64)
    if shared:  # one hash in ten is of one bucket
        pool[::10] = [crowded(int(number)) for number in rng.integers(0, 2**16, 600)]
    pool = np.unique(pool)
    for _ in range(12):
        some = rng.permutation(pool)[: rng.integers(1, 2500)]
        found = table.find_blocks(some)
        expected = [model.get(block, 0) for block in some.tolist()]
        assert table.values.take(found.places).tolist() == expected
        assert found.missing.tolist() == [value == 0 for value in expected]
        if rng.integers(0, 2):
            new = some[found.missing]
            values = rng.integers(1, 1000, len(new)).astype(np.int32)
            table.insert_blocks(new, values, np.zeros(len(new), dtype=np.uint32))
            model.update(zip(new.tolist(), values.tolist(), strict=True))
        else:
            table.delete_places(found.places[~found.missing])
            for block in some.tolist():
                model.pop(block, None)
        assert table.size == len(model)
        used = table.used_places(0, table.buckets)
        assert sorted(table.hashes_at(used).tolist()) == sorted(model)


def test_a_full_index_drops_the_reports_that_are_oldest_and_keeps_those_of_prompts_that_come_again() -> None:
    index = PrefixIndex(max_bytes=2_000_000)
    lives = [index.join() for _ in range(3)]
    index.lay_out(lives)
    hot = array(list(range(1, 33)))
    for life in lives:
        index.stored(life, hot, 0.0)
    for turn in range(4000):
        blocks = array(list(range(turn * 32 + 1000, turn * 32 + 1032)))
        index.stored(lives[turn % 3], blocks, float(turn))
        if turn % 50 == 0:
            index.write(lives[0], hot, float(turn), "r", told=True)
            index.confirm("r", float(turn))
            assert index.memory().bytes <= index.memory().limit
    assert index.match(hot).tolist() == [32.0, 32.0, 32.0]
    held = [bool(index.match(array([turn * 32 + 1000])).any()) for turn in range(4000)]
    kept = sum(held)
    assert 500 < kept < 1200
    assert all(held[4000 - kept // 2 :])
    assert not any(held[: 4000 - 2 * kept])


def test_a_snapshot_of_reports_is_the_state_at_its_moment_whatever_comes_after() -> None:
    index = PrefixIndex()
    life = index.join()
    index.stored(life, array([1, 2, 3, 4]), 10.0)
    index.removed(life, array([2]), 11.0)
    index.stored(life, array([1]), 12.0)
    promise = index._lives[life].stored.promise_copy()  # pyright: ignore[reportPrivateUsage]
    index.removed(life, array([1, 3]), 13.0)
    frozen = promise.keep()
    blocks = [(block, at) for _, at, run in frozen.rest for block in run]
    assert blocks == [(3, 10.0), (4, 10.0), (1, 12.0)]
    assert set(frozen.held) == {1, 3, 4}
