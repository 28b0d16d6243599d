"""A question reaches the keeper of its count, and questions of one message are answered in their order."""

from collections.abc import Sequence
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pointsman_contracts.limits import LimitAsk, LimitShard, LimitVerdict
from pointsman_limits.domain.limits.asking import LONGEST_PAUSE_S, KeeperSearch, give_verdicts, put_in_order
from pointsman_limits.domain.limits.handing_over import REFUSED_S, REMEMBERED_S, HandOvers
from pointsman_limits.domain.limits.lease import Leases

VERDICTS = st.lists(
    st.sampled_from(
        [LimitVerdict(outcome="admitted"), LimitVerdict(outcome="refused"), LimitVerdict(outcome="elsewhere")]
    ),
    min_size=1,
    max_size=5,
)


def questions(count: int) -> list[LimitAsk]:
    first = LimitAsk(
        edge="e", request_id="r", limit="0", scope="", attempt=1, shard=0, windows=(), until_ms=1, open_s=1.0
    )
    return [replace(first, limit=str(number), follows=True if number else None) for number in range(count)]


@given(VERDICTS)
def test_a_request_is_counted_by_the_limits_before_the_first_that_refuses_it(verdicts: Sequence[LimitVerdict]) -> None:
    asks = questions(len(verdicts))
    known = give_verdicts(asks, lambda ask: verdicts[int(ask.limit)])
    admitted = [*takewhile(lambda each: each.outcome == "admitted", verdicts)]
    assert [each for each in known if each.outcome == "admitted"] == admitted
    assert known[: len(admitted)] == tuple(admitted)
    assert put_in_order(asks, known).early == []


@given(VERDICTS)
def test_a_count_that_an_earlier_keeper_made_too_early_is_released(verdicts: Sequence[LimitVerdict]) -> None:
    asks = questions(len(verdicts))
    answers, early = put_in_order(asks, verdicts)
    counted = {each.ask.limit for each in answers if each.verdict.outcome == "admitted"}
    released = {ask.limit for ask in early}
    assert counted | released == {
        ask.limit for ask, each in zip(asks, verdicts, strict=True) if each.outcome == "admitted"
    }
    assert not counted & released


@given(st.lists(st.sampled_from(["", "me", "a", "b"]), max_size=30))
def test_a_search_waits_before_it_asks_again(named: Sequence[str]) -> None:
    search = KeeperSearch("me", "a")
    for number, each in enumerate(named):
        before = search.keeper
        pause_s = search.follow_verdict(each, "b", doubted=each == "a")
        assert search.keeper == ("b" if each in ("", "me", "a") else each)
        assert (pause_s is None) == (number == 0 and search.keeper != before)
        assert pause_s is None or 0 <= pause_s <= LONGEST_PAUSE_S


def test_a_shard_is_looked_for_where_it_was_given_and_not_where_it_was_refused() -> None:
    found = HandOvers("me", Leases("me"))
    saved = LimitShard(shard=3, keeper="old", at_ms=0)

    def holder(now: float) -> str:
        return found.find_holder(3, saved, lambda instance: instance != "dead", now)

    assert holder(0.0) == "old"
    found.note_refused(3, "old", 0.0)
    assert (holder(0.5 * REFUSED_S), holder(1.5 * REFUSED_S)) == ("", "old")
    found.note_handed(3, "new", b"counts", 10.0)
    assert holder(10.0) == "new"
    assert found.find_answer(3, "new", 10.0) == b"counts"
    assert found.find_answer(3, "another", 10.0) is None
    assert (found.find_answer(3, "new", 10.0 + REMEMBERED_S), holder(10.0 + REMEMBERED_S)) == (None, "old")
    found.note_handed(3, "dead", b"", 30.0)
    assert holder(30.0) == ""
