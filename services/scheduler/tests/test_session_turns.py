"""Sessions as a scheduler knows them: turns by the prompt that they go on with, whatever clients name them."""

import sys
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_contracts.message import NO_BYTES, Blob
from pointsman_contracts.scheduling import ReservationChange
from pointsman_scheduler.domain.session_turns import (
    CONVERSATIONS,
    MOST_OPEN,
    NO_FORECAST,
    ReturnForecast,
    SessionTurns,
    TurnSeen,
)

SIZE = 64


def chain(family: int, blocks: int, own: int = 0, branch: int = 0) -> Blob:
    """The hashes of a prompt: `own` blocks of a branch behind those of its family."""
    shared = np.random.default_rng(family).integers(1, 2**63, size=blocks, dtype=np.uint64)
    rest = np.random.default_rng((family, branch, 1)).integers(1, 2**63, size=own, dtype=np.uint64)
    return Blob(np.concatenate((shared, rest)).tobytes())


class Sessions:
    """A record, and a clock that the test moves."""

    def __init__(self, most: int = 100) -> None:
        self.turns = SessionTurns(most)
        self.now = 0.0
        self._numbers = 0

    def begin(self, blocks: Blob, worker: str = "w1", **facts: object) -> tuple[TurnSeen, str]:
        self._numbers += 1
        fields: dict[str, object] = {
            "op": "reserve", "request_id": f"r{self._numbers}", "edge": "e1", "worker": worker, "boot_id": "boot-1",
            "session": "s1", "flow": "acme", "prompt_tokens": len(blocks) // 8 * SIZE + 7, "blocks": blocks,
            "block_tokens": SIZE,
        }  # fmt: skip
        change = ReservationChange(**(fields | facts))  # pyright: ignore[reportArgumentType] - named by the test
        return self.turns.begin_turn("llama", change, self.now), change.request_id

    def end(self, request: str, worker: str = "w1", *, answered: bool = True, forecast: ReturnForecast = NO_FORECAST):
        return self.turns.end_turn(("e1", request), worker, "boot-1", self.now, forecast, answered=answered)

    def turn(self, blocks: Blob, worker: str = "w1", took: float = 1.0, **facts: object) -> TurnSeen:
        seen, request = self.begin(blocks, worker, **facts)
        self.now += took
        self.end(request, worker)
        return seen


def test_a_turn_that_goes_on_with_the_last_prompt_has_its_engine_its_gap_and_its_tokens() -> None:
    sessions = Sessions()
    first = sessions.turn(chain(1, 10))
    assert (first.number, first.continues, first.last_worker, first.gap_s) == (1, False, None, None)
    sessions.now += 2.5
    second = sessions.turn(chain(1, 14), "w2")
    assert (second.number, second.continues, second.last_worker) == (2, True, "w1")
    assert (second.gap_s, second.continued_tokens) == (2.5, 10 * SIZE)
    assert sessions.turn(chain(1, 15), "w2").last_worker == "w2"


def test_a_background_request_of_the_session_moves_nothing() -> None:
    sessions = Sessions()
    sessions.turn(chain(1, 40))
    side = sessions.turn(chain(2, 3), "w9")
    assert (side.number, side.continues, side.continued_tokens) == (2, False, 0)
    # One that shares the beginning alone, e.g. the instructions, is another conversation, too.
    other = sessions.turn(chain(1, 10, 25, branch=3), "w8")
    assert not other.continues
    assert 0 < other.continued_tokens <= 10 * SIZE
    assert sessions.turn(chain(1, 44)).last_worker == "w1"


def test_sessions_of_one_name_in_two_tenants_or_two_pools_are_two() -> None:
    sessions = Sessions()
    sessions.turn(chain(1, 10))
    assert sessions.turn(chain(1, 10), flow="umbrella").number == 1
    assert sessions.turn(chain(1, 12)).number == 2


def test_the_prediction_at_the_end_of_a_turn_is_told_with_the_next_one() -> None:
    sessions = Sessions()
    _, request = sessions.begin(chain(1, 10))
    sessions.end(request, forecast=ReturnForecast(32.0, 4.0))
    seen, _ = sessions.begin(chain(1, 12))
    assert (seen.kept_for_s, seen.half_back_s) == (32.0, 4.0)


def test_a_turn_beside_one_that_has_not_ended_has_no_gap() -> None:
    sessions = Sessions()
    sessions.turn(chain(1, 10))
    sessions.begin(chain(1, 12))
    assert sessions.begin(chain(1, 12))[0].gap_s is None


def test_a_request_that_is_decided_again_is_one_turn_and_leaves_the_engine_that_did_not_answer() -> None:
    sessions = Sessions()
    sessions.turn(chain(1, 10))
    _, request = sessions.begin(chain(1, 12), "w1")
    again, _ = sessions.begin(chain(1, 12), "w2", request_id=request)
    assert (again.number, again.again, again.last_worker) == (2, True, "w1")
    assert sessions.end(request, "w2") is None
    assert sessions.turn(chain(1, 14), "w2").number == 3


def test_an_answer_of_another_engine_than_the_chosen_one_is_a_change_unless_nothing_was_there_to_lose() -> None:
    sessions = Sessions()
    _, request = sessions.begin(chain(1, 10), "w1")
    assert sessions.end(request, "w2") is None
    _, request = sessions.begin(chain(1, 12), "w2")
    change = sessions.end(request, "w3")
    assert change is not None
    assert (change.last_worker, change.worker, change.seen.number) == ("w2", "w3", 2)


def test_the_prompt_of_a_turn_that_no_engine_computed_is_in_no_cache() -> None:
    sessions = Sessions()
    sessions.turn(chain(1, 10))
    _, request = sessions.begin(chain(1, 30))
    sessions.end(request, answered=False)
    assert sessions.turn(chain(1, 32)).continued_tokens == 10 * SIZE


def test_an_end_that_comes_twice_or_for_an_unknown_request_changes_nothing() -> None:
    sessions = Sessions()
    _, request = sessions.begin(chain(1, 10))
    for _ in range(2):
        assert sessions.end(request) is None
    assert sessions.end("unknown") is None
    assert sessions.turn(chain(1, 12)).gap_s == 0.0


def test_prompts_without_blocks_and_of_another_block_size_continue_nothing() -> None:
    sessions = Sessions()
    sessions.turn(chain(1, 0))
    assert not sessions.turn(chain(1, 0)).continues
    sessions.turn(chain(1, 10))
    assert not sessions.turn(chain(1, 10), block_tokens=16).continues


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 3), st.integers(0, 50), st.sampled_from(["w1", "w2", "w3"])),
        min_size=1,
        max_size=40,
    )
)
def test_no_order_of_prompts_finds_more_in_common_than_there_is(steps: list[tuple[int, int, int, str]]) -> None:
    sessions, before = Sessions(), set[bytes]()
    for shared, branch, own, worker in steps:
        blocks = chain(1, shared, own, branch)
        seen = sessions.turn(blocks, worker)
        hashes = [blocks[place : place + 8] for place in range(0, len(blocks), 8)]
        common = sum(1 for each in hashes if each in before)
        assert seen.continued_tokens <= common * SIZE
        assert seen.continues or seen.last_worker is None
        before.update(hashes)


def test_memory_is_bounded_whatever_clients_name_their_sessions() -> None:
    sessions = Sessions(most=50)
    for number in range(500):
        sessions.turn(chain(number, 4), session=f"s{number}")
    assert len(sessions.turns) == 50
    for number in range(CONVERSATIONS + 3):
        sessions.turn(chain(1000 + number, 4))
    # Only the last conversations are known.
    assert sessions.turn(chain(1000 + CONVERSATIONS + 2, 5)).continues
    assert not sessions.turn(chain(1000, 5)).continues
    for _ in range(MOST_OPEN + 10):
        sessions.begin(NO_BYTES)
    assert sessions.begin(NO_BYTES)[0].gap_s is None


def test_ten_thousand_sessions_take_less_than_thirty_mebibytes() -> None:
    sessions = Sessions(most=10_000)
    for number in range(300):
        for conversation in range(CONVERSATIONS):
            sessions.turn(chain(number * 9 + conversation, 60), session=f"{number:0200d}")
    assert _size(sessions.turns) / 300 * 10_000 < 30 * 2**20


def _size(thing: Any, seen: set[int] | None = None) -> int:
    """Bytes of an object and of all that it holds, each once."""
    seen = set() if seen is None else seen
    kind = cast("type[object]", type(thing))
    if id(thing) in seen or issubclass(kind, type):
        return 0
    seen.add(id(thing))
    inner: list[Any] = [getattr(thing, name) for name in getattr(kind, "__struct_fields__", ())]
    inner += [*getattr(thing, "__dict__", {}).values()]
    if issubclass(kind, dict | list | tuple):
        inner += [*thing, *getattr(thing, "values", tuple)()]
    return sys.getsizeof(thing) + sum(_size(each, seen) for each in inner)
