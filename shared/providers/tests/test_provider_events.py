"""The events of a provider's stream, cut anywhere."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_apis.streams import event
from pointsman_providers import provider_events
from pointsman_providers.errors import BrokenAnswer
from pointsman_providers.provider_events import ProviderEvents


def read(data: bytes, cuts: list[int]) -> list[tuple[str, bytes]]:
    """Name and data of the events of `data`, fed in pieces."""
    events = ProviderEvents()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found = [each for start, end in itertools.pairwise(places) for each in events.split_bytes(data[start:end])]
    return [(each.name, each.data) for each in (*found, *events.split_end()) if each.data]


def test_names_comments_and_data_of_several_lines() -> None:
    data = b"\xef\xbb\xbf: hi\n\nevent: a\ndata: 1\ndata:2\nid: 7\n\ndata\n\nevent: lost\n\ndata: end"
    assert read(data, []) == [("a", b"1\n2"), ("", b"end")]


@given(
    st.lists(st.tuples(st.sampled_from(["", "a"]), st.binary(min_size=1, max_size=20)), max_size=5),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(min_value=0, max_value=500), max_size=10),
)
def test_any_end_of_line_and_any_cut_reads_the_same(
    events: list[tuple[str, bytes]], end: bytes, cuts: list[int]
) -> None:
    named = [(name, data.replace(b"\n", b"x").replace(b"\r", b"x")) for name, data in events]
    data = b"".join(event(data, name) for name, data in named).replace(b"\n", end)
    assert read(data, cuts) == named


def test_an_event_without_end_breaks_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_events, "LONGEST_EVENT", 10)
    with pytest.raises(BrokenAnswer):
        ProviderEvents().split_bytes(b"x" * 11)
