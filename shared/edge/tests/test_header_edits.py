"""Edits of headers by several parties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.journey import HeaderEdit
from pointsman_edge.sending.header_edits import edited_answer_headers, edited_headers, folded, with_edits

SENT = [(b"x-team", b"client"), (b"accept", b"*/*")]


def test_of_several_parties_the_last_word_on_a_header_counts() -> None:
    edits = [
        HeaderEdit(name="X-Team", value="processor"),
        HeaderEdit(name="x-team", value="stage"),
        HeaderEdit(name="x-other", value="1"),
        HeaderEdit(name="X-TEAM", value="another stage"),
    ]
    wanted = [(b"accept", b"*/*"), (b"x-team", b"another stage"), (b"x-other", b"1")]
    assert with_edits(SENT, folded(edits)) == wanted
    assert edited_answer_headers(SENT, edits) == wanted


def test_a_removal_takes_what_an_earlier_party_set_and_a_later_one_sets_it_again() -> None:
    gone = [HeaderEdit(name="x-team", value="processor"), HeaderEdit(name="X-Team")]
    assert with_edits(SENT, folded(gone)) == edited_answer_headers(SENT, gone) == [(b"accept", b"*/*")]
    back = [*gone, HeaderEdit(name="x-team", value="stage")]
    assert dict(with_edits(SENT, folded(back)))[b"x-team"] == b"stage"


NAMES = st.sampled_from(["x-a", "X-A", "x-b", "X-b"])


@given(st.lists(st.builds(HeaderEdit, name=NAMES, value=st.none() | st.sampled_from(["1", "2"]))))
def test_folding_is_making_one_edit_after_the_other(edits: list[HeaderEdit]) -> None:
    headers = [(b"x-a", b"0"), (b"x-c", b"0")]
    one_by_one = headers
    for edit in edits:
        one_by_one = with_edits(one_by_one, folded([edit]))
    assert sorted(with_edits(headers, folded(edits))) == sorted(one_by_one)


VALUES = st.none() | st.sampled_from(["1", "10.0.0.7:8000", "a\nb", "\u00e9"])
ANY_NAMES = st.sampled_from(["x-a", "X-A", "x-gateway-destination-endpoint", "host", "a b"])


@given(st.lists(st.builds(HeaderEdit, name=ANY_NAMES, value=VALUES), max_size=2), st.booleans())
def test_one_edit_alone_is_made_as_several_are(edits: list[HeaderEdit], sent: bool) -> None:
    headers = [(b"x-a", b"0"), (b"accept", b"*/*")] if sent else [(b"accept", b"*/*")]
    alone, together = list[str](), list[str]()
    assert edited_headers(headers, edits, alone.append) == with_edits(headers, folded(edits, together.append))
    assert alone == together


@pytest.mark.parametrize(
    "name",
    ["Content-Length", "transfer-encoding", "host", "connection", "te", "trailer", "upgrade", "keep-alive", "expect",
     "proxy-connection", "content_length", "x-request-id", "traceparent"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["7", None])
def test_headers_that_frame_a_request_stay_and_the_attempt_is_reported(name: str, value: str | None) -> None:
    dropped: list[str] = []
    assert folded([HeaderEdit(name=name, value=value)], dropped.append) == {}
    assert dropped == [name.lower()]


def test_a_name_that_no_header_can_have_is_reported_without_its_text() -> None:
    dropped: list[str] = []
    assert folded([HeaderEdit(name=":path", value="/x"), HeaderEdit(name="a b", value="1")], dropped.append) == {}
    assert dropped == ["invalid", "invalid"]
