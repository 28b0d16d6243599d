"""Server-sent events, cut anywhere."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_providers import sse
from pointsman_providers.errors import BrokenAnswer
from pointsman_providers.sse import Event, Events


def read(data: bytes, cuts: list[int]) -> list[Event]:
    """The events of `data`, fed in pieces."""
    events = Events()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found = [event for start, end in itertools.pairwise(places) for event in events.feed(data[start:end])]
    return found + events.end()


def test_names_comments_and_data_of_several_lines() -> None:
    data = b"\xef\xbb\xbf: hi\n\nevent: a\ndata: 1\ndata:2\nid: 7\n\ndata\n\nevent: lost\n\ndata: end"
    assert read(data, []) == [Event("a", b"1\n2"), Event("", b""), Event("", b"end")]


@given(
    st.lists(st.tuples(st.sampled_from(["", "a"]), st.binary(max_size=20)), max_size=5),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(min_value=0, max_value=500), max_size=10),
)
def test_any_end_of_line_and_any_cut_reads_the_same(
    events: list[tuple[str, bytes]], end: bytes, cuts: list[int]
) -> None:
    told = [(name, data.replace(b"\n", b"").replace(b"\r", b"")) for name, data in events]
    data = b"".join(sse.event(data, name) for name, data in told).replace(b"\n", end)
    assert read(data, cuts) == [Event(name, data) for name, data in told]


def test_a_line_without_end_is_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LONGEST_LINE", 10)
    with pytest.raises(BrokenAnswer):
        Events().feed(b"x" * 11)
