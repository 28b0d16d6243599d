"""Hints about the lengths of answers: as much worth as the sender's earlier ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_scheduler.plugins.producers.hinted_lengths import LEAST_ANSWERS, HintedLengths
from pointsman_testing.scheduler_bench import Bench

USUAL = 100.0


@given(st.integers(1, 10_000), st.integers(1, 4000), st.integers(LEAST_ANSWERS, 500))
def test_a_sender_that_always_gives_one_hint_is_believed_to_want_what_its_answers_have(
    hint: int, answered: int, answers: int
) -> None:
    lengths = HintedLengths()
    for _ in range(answers):
        lengths.learn_length("liar", hint, answered)
    believed = lengths.believe_length("liar", hint, USUAL, None)
    assert believed == pytest.approx(max(answered, USUAL / 8), abs=1)


@given(st.lists(st.integers(20, 4000), min_size=LEAST_ANSWERS, max_size=100), st.integers(20, 4000))
def test_true_hints_are_believed_and_bounded_by_the_clients_limit(answers: list[int], hint: int) -> None:
    lengths = HintedLengths()
    for tokens in answers:
        lengths.learn_length("true", tokens, tokens)
    assert lengths.believe_length("true", hint, USUAL, None) == hint
    assert lengths.believe_length("true", hint, USUAL, 50) == min(hint, 50)


def test_a_new_senders_hint_counts_for_nothing_and_no_sender_speaks_for_another() -> None:
    lengths = HintedLengths()
    for _ in range(100):
        lengths.learn_length("true", 10, 10)
    assert lengths.believe_length("new", 10, USUAL, 700) == 700
    assert lengths.believe_length("new", 10, USUAL, None) is None


def test_no_answer_counts_as_shorter_than_an_eighth_of_the_usual_one() -> None:
    lengths = HintedLengths()
    for _ in range(100):
        lengths.learn_length("short", 1000, 1000)
    assert lengths.believe_length("short", 1, USUAL, None) == 12


def test_schedulers_learn_from_the_ends_of_requests_what_a_hint_is_worth() -> None:
    bench = Bench()
    bench.join("w")
    believed: list[int | None] = []
    for _ in range(LEAST_ANSWERS + 1):
        request = bench.request(hinted_output_tokens=50, fairness_id="team")
        bench.decide(request)
        believed.append(request.longest_output)
        bench.pool.books.started(request.key, "w", 10.0, bench.now)
        bench.pool.books.completed(request.key, bench.now, ok=True, output_tokens=200, duration_ms=90.0)
    assert believed == [None] * LEAST_ANSWERS + [200]
