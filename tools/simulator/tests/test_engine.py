"""The engine model: what a batch, a cache and a pass may and may not do."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_simulator.engine import EngineConfig, EngineModel
from pointsman_simulator.sequence import Sequence
from pointsman_simulator.timing import Timing, effective_prefill_tokens

SMALL = EngineConfig(num_blocks=24, block_size=4, max_num_seqs=5, max_num_batched_tokens=16, max_loras=1)


def prompt(length: int, family: int, shared: int, block_size: int = 4) -> list[int]:
    """Block names of a prompt whose first `shared` blocks are common to its family."""
    own = (length + 7) * 1000 + family * 100_000_000
    return [family * 1000 + index if index < shared else own + index + 500 for index in range(length // block_size)]


def run_to_end(engine: EngineModel, now: float) -> float:
    while (ends_at := engine.begin_pass(now)) is not None:
        now = ends_at
        engine.finish_pass()
    return now


def check_books(engine: EngineModel) -> None:
    cache = engine.cache
    held = Counter(block for sequence in engine.running for block in sequence.blocks[: sequence.full_blocks])
    assert {block: cache.references(block) for block in held} == dict(held)
    assert cache.used_blocks == len(held) + sum(sequence.has_partial for sequence in engine.running)
    assert cache.available_blocks >= 0
    assert len(engine.running) <= engine.config.max_num_seqs
    assert all(sequence.full_blocks == 0 and not sequence.has_partial for sequence in engine.waiting)


jobs = st.tuples(
    st.integers(1, 40), st.integers(1, 30), st.integers(0, 2), st.integers(0, 8), st.sampled_from([None, "a", "b"])
)
steps = st.lists(st.one_of(jobs, st.just("pass"), st.integers(0, 20)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_blocks_references_and_tokens_are_conserved_whatever_happens(
    script: list[tuple[int, int, int, int, str | None] | str | int],
) -> None:
    engine = EngineModel(SMALL)
    sequences: list[Sequence] = []
    cached: set[int] = set()
    emitted: Counter[int | str] = Counter()
    now = 0.0

    def one_pass() -> bool:
        nonlocal now
        if engine.pass_ends_at is None and engine.begin_pass(now) is None:
            return False
        check_books(engine)
        result = engine.finish_pass()
        assert result.ended_at > now
        now = result.ended_at
        emitted.update(sequence.request_id for sequence in result.emitted)
        assert cached.isdisjoint(result.stored)
        assert cached.issuperset(result.removed)
        cached.update(result.stored)
        cached.difference_update(result.removed)
        assert all(block in engine.cache for block in cached)
        assert len(cached) + sum(sequence.has_partial for sequence in engine.running) <= engine.cache.num_blocks
        return True

    for step in script:
        if step == "pass":
            one_pass()
        elif isinstance(step, tuple):
            prompt_tokens, output_tokens, family, shared, lora = step
            sequence = Sequence(
                len(sequences), prompt_tokens, output_tokens, prompt(prompt_tokens, family, shared), lora
            )
            engine.submit_sequence(sequence, now)
            sequences.append(sequence)
            if engine.pass_ends_at is None:
                engine.begin_pass(now)
        elif isinstance(step, int) and sequences:
            engine.drop_sequence(sequences[step % len(sequences)])
        check_books(engine)
    for _ in range(100_000):
        if not one_pass():
            break
    check_books(engine)
    assert not engine.running
    assert not engine.waiting
    assert engine.cache.used_blocks == 0
    for sequence in sequences:
        if not sequence.aborted:
            assert emitted[sequence.request_id] == sequence.generated == sequence.output_tokens
            assert sequence.arrived_at <= sequence.scheduled_at < sequence.first_token_at
            assert sequence.first_token_at <= sequence.finished_at
    assert engine.counters.generated_tokens == emitted.total()
    assert engine.counters.finished + engine.counters.aborted == len(sequences)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200), st.integers(1, 60), st.integers(0, 2)), max_size=12)
)
def test_skipping_decodes_changes_no_outcome(arrivals: list[tuple[int, int, int, int]]) -> None:
    def simulate(skip: bool) -> list[tuple[float, float, int]]:
        engine = EngineModel(EngineConfig(num_blocks=200, block_size=4, max_num_batched_tokens=64))
        sequences: list[Sequence] = []
        now = 0.0
        for at, prompt_tokens, output_tokens, family in [*sorted(arrivals), (10**9, 1, 1, 0)]:
            while True:
                if engine.pass_ends_at is not None:
                    if engine.pass_ends_at > at:
                        break
                    now = engine.finish_pass().ended_at
                if skip:
                    now = engine.skip_decodes(now, at)
                if engine.begin_pass(now) is None:
                    now = at
                    break
            sequences.append(Sequence(at, prompt_tokens, output_tokens, prompt(prompt_tokens, family, 9)))
            engine.submit_sequence(sequences[-1], at)
        return [(s.first_token_at, s.finished_at, s.cached_tokens) for s in sequences[:-1]]

    assert simulate(skip=True) == simulate(skip=False)


def test_a_pass_costs_what_the_reference_formula_says() -> None:
    timing = Timing()
    assert timing.prefill_ms(1000) == pytest.approx(16.50142 + 15.18344 + 0.4209989)
    assert timing.decode_ms(0.5) == pytest.approx(-25.74 * 0.25 + 54.01 * 0.5 + 5.74)
    assert timing.decode_ms(3.0) == timing.decode_ms(1.0)
    assert Timing(speedup=10).prefill_ms(1000) == pytest.approx(timing.prefill_ms(1000) / 10)
    assert effective_prefill_tokens([(0, 5), (3, 8)]) == 2 * (16 // 2 - 3 // 2)


def test_an_eight_token_answer_alone_takes_the_measured_59_ms() -> None:
    engine = EngineModel()
    sequence = Sequence("a", 8, 8, [])
    engine.submit_sequence(sequence, 0.0)
    run_to_end(engine, 0.0)
    assert sequence.finished_at == pytest.approx(17.65 + 7 * 5.74, rel=0.02)


def test_a_long_prompt_is_computed_in_chunks_while_others_keep_decoding() -> None:
    engine = EngineModel(EngineConfig(max_num_batched_tokens=100))
    talker, reader = Sequence("talker", 10, 50, []), Sequence("reader", 350, 1, [])
    engine.submit_sequence(talker, 0.0)
    now = engine.begin_pass(0.0)
    assert now is not None
    engine.finish_pass()
    engine.submit_sequence(reader, now)
    for _ in range(4):
        now = engine.begin_pass(now)
        assert now is not None
        engine.finish_pass()
    assert talker.generated == 5
    assert reader.first_token_at == now


def test_a_prompt_seen_before_is_not_computed_again_but_for_its_last_token() -> None:
    engine = EngineModel(EngineConfig(block_size=4))
    blocks = prompt(16, 1, 4)
    for name in ("first", "second"):
        engine.submit_sequence(Sequence(name, 16, 1, list(blocks)), 0.0)
        run_to_end(engine, 0.0)
    assert engine.counters.prompt_tokens == 32
    assert engine.counters.cached_tokens == 12


def test_two_equal_prompts_in_one_pass_share_their_blocks() -> None:
    engine = EngineModel(EngineConfig(block_size=4))
    first, second = (Sequence(name, 17, 1, prompt(17, 1, 4)) for name in ("first", "second"))
    engine.submit_sequence(first, 0.0)
    engine.submit_sequence(second, 0.0)
    engine.begin_pass(0.0)
    assert (first.cached_tokens, second.cached_tokens) == (0, 16)
    assert engine.cache.used_blocks == 4 + 2


def test_a_full_cache_forgets_the_end_of_the_oldest_prompt_first() -> None:
    engine = EngineModel(EngineConfig(num_blocks=8, block_size=4))
    old, new = prompt(20, 1, 5), prompt(16, 2, 4)
    for blocks in (old, new):
        engine.submit_sequence(Sequence(len(blocks), len(blocks) * 4, 1, list(blocks)), 0.0)
        run_to_end(engine, 0.0)
    assert engine.cache.count_cached(old, 5) == 4
    assert engine.cache.count_cached(new, 4) == 4


def test_when_memory_runs_out_the_newest_is_preempted_and_still_finishes() -> None:
    engine = EngineModel(EngineConfig(num_blocks=8, block_size=4))
    old, new = Sequence("old", 8, 16, prompt(8, 1, 2)), Sequence("new", 8, 16, prompt(8, 2, 2))
    engine.submit_sequence(old, 0.0)
    engine.submit_sequence(new, 0.0)
    run_to_end(engine, 0.0)
    assert engine.counters.preemptions > 0
    assert old.finished_at < new.finished_at
    assert (old.generated, new.generated) == (16, 16)


def test_an_aborted_sequence_leaves_at_once_and_its_blocks_are_free() -> None:
    engine = EngineModel()
    sequence = Sequence("a", 1000, 10, [])
    engine.submit_sequence(sequence, 0.0)
    engine.begin_pass(0.0)
    assert engine.drop_sequence(sequence)
    assert engine.cache.used_blocks == 0
    assert engine.finish_pass().emitted == []
    assert not engine.drop_sequence(sequence)


def test_an_adapter_beyond_the_slots_waits_and_does_not_block_the_queue() -> None:
    engine = EngineModel(EngineConfig(max_loras=1, lora_load_ms=100.0))
    a, b, base = Sequence("a", 8, 2, [], "a"), Sequence("b", 8, 2, [], "b"), Sequence("base", 8, 2, [])
    for sequence in (a, b, base):
        engine.submit_sequence(sequence, 0.0)
    first = engine.begin_pass(0.0)
    assert first is not None
    assert first > 100.0
    assert engine.running == [a, base]
    engine.finish_pass()
    run_to_end(engine, first)
    assert b.scheduled_at >= a.finished_at


def test_a_sequence_that_can_never_fit_is_refused() -> None:
    engine = EngineModel(EngineConfig(num_blocks=4, block_size=4))
    with pytest.raises(ValueError, match="17 tokens never fit in a cache of 16"):
        engine.submit_sequence(Sequence("a", 10, 7, []), 0.0)


def test_evicted_blocks_come_back_from_host_memory_while_the_engine_goes_on() -> None:
    config = EngineConfig(num_blocks=8, block_size=4, host_blocks=16, fetch_token_ms=10.0)
    engine = EngineModel(config)

    def run(sequence: Sequence, now: float) -> float:
        engine.submit_sequence(sequence, now)
        while math.isnan(sequence.finished_at):
            ends = engine.begin_pass(now)
            now = engine.link.next_at if ends is None else engine.finish_pass().ended_at
        return now

    now = run(Sequence(1, 24, 1, list(range(6))), 0.0)
    now = run(Sequence(2, 24, 1, list(range(100, 106))), now)  # evicts most of the first prompt
    assert len(engine.take_host_changes()[0]) == 0  # a pass's result has told of them
    again = Sequence(3, 24, 1, list(range(6)))
    began = now
    now = run(again, now)
    fetched = engine.counters.fetched_tokens
    assert (again.cached_tokens, fetched) == (20, 12)  # two blocks were on the device still
    assert now - began > fetched * config.fetch_token_ms
    assert engine.cache.used_blocks == 0


def test_a_fetch_that_is_aborted_gives_its_blocks_back() -> None:
    engine = EngineModel(EngineConfig(num_blocks=8, block_size=4, host_blocks=16, fetch_token_ms=10.0))
    for number, first in enumerate((0, 100)):
        engine.submit_sequence(Sequence(number, 24, 1, list(range(first, first + 6))), 0.0)
        assert engine.begin_pass(float(number)) is not None
        engine.finish_pass()
    waits = Sequence(9, 24, 1, list(range(6)))
    engine.submit_sequence(waits, 5.0)
    assert engine.begin_pass(5.0) is None
    assert len(engine.link) == 1
    assert engine.drop_sequence(waits)
    assert (len(engine.link), engine.cache.used_blocks) == (0, 0)
