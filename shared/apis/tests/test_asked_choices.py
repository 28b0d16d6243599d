"""The choices of answers and of streams, against those that requests ask for."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from pointsman_apis.asked_choices import AskedChoices
from pointsman_apis.chat import CHAT
from pointsman_apis.responses import RESPONSES

Choice = dict[str, object]


def asked(n: int) -> AskedChoices:
    return AskedChoices(CHAT.name, n, lambda: {"n": n})


def event(index: object, reason: str | None = None) -> bytes:
    choice: Choice = {"index": index, "delta": {}, "finish_reason": reason}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


OTHERS: list[object] = [None, "0", 1.5, True, {}, []]
places: st.SearchStrategy[object] = st.one_of(st.integers(-1, 4), st.sampled_from(OTHERS))


@given(n=st.integers(1, 4), found=st.lists(places, min_size=1, max_size=5))
def test_a_whole_answer_is_one_if_it_has_each_choice_once(n: int, found: list[object]) -> None:
    choices: list[Choice] = [{"index": index, "finish_reason": "stop"} for index in found]
    right = len(found) == 1 if n == 1 else sorted(map(repr, found)) == sorted(map(repr, range(n)))
    assert (asked(n).fault_of_whole(orjson.dumps({"choices": choices})) == "") is right


@given(n=st.integers(2, 4), data=st.data())
def test_a_stream_of_several_choices_is_one_if_each_ends_and_passes_byte_for_byte(n: int, data: st.DataObject) -> None:
    ends = data.draw(st.permutations(range(n)))
    begun = data.draw(st.lists(st.integers(0, n - 1), max_size=6))
    lost = data.draw(st.sampled_from([None, *range(n)]))
    events = [*map(event, begun), *(event(index, "stop") for index in ends if index != lost)]
    followed = asked(n).follow_stream()
    sent = b"".join(events)
    assert followed.pass_events(sent) == sent
    assert followed.lacks_a_choice() is (lost is not None)
    mark = b"data: [DONE]\n\n"
    assert followed.pass_events(mark) == (mark if lost is None else b"")
    assert bool(followed.fault) is (lost is not None)


@given(n=st.integers(1, 3), index=places)
def test_a_choice_beside_those_that_were_asked_for_ends_a_stream(n: int, index: object) -> None:
    followed = asked(n).follow_stream()
    known = type(index) is int
    passes = 0 <= index < n if isinstance(index, int) and known else n == 1
    assert followed.pass_events(event(index)) == (event(index) if passes else b"")


def test_answers_of_other_apis_are_left_alone() -> None:
    other = AskedChoices(RESPONSES.name, 2, lambda: {"n": 2})
    assert not other.several
    assert other.fault_of_whole(orjson.dumps({"choices": [{}, {}, {"finish_reason": 1}]})) == ""
