"""The type, id and trace that a recorder reads from an event's headers."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.headers import MESSAGE_ID, TRACEPARENT, TYPE
from pointsman_recorder.adapters.event_headers import read_headers
from pointsman_runtime.bus import message_headers

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
headers = st.lists(
    st.tuples(
        st.sampled_from([TYPE, MESSAGE_ID, TRACEPARENT, "Other"]),
        st.sampled_from(["", "a", " b ", "request.scheduled.v1", f"00-{TRACE}-00f067aa0ba902b7-01", "00-1-2-3", "ä"]),
    ),
    max_size=5,
)


@given(headers)
def test_a_block_has_the_first_header_of_each_name(each: list[tuple[str, str]]) -> None:
    block = ("NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in each) + "\r\n").encode()
    found = dict(reversed([(name, value.strip()) for name, value in each]))
    traced = TRACE in found.get(TRACEPARENT, "")
    assert read_headers(block) == (found.get(TYPE, ""), found.get(MESSAGE_ID, ""), TRACE if traced else None)


def test_a_block_that_is_cut_or_empty_has_what_it_has() -> None:
    whole = message_headers.build("t.v1", message_id="source/1")
    assert read_headers(whole) == ("t.v1", "source/1", None)
    assert read_headers(b"") == ("", "", None)
    for end in range(len(whole)):
        cut = whole[:end]
        assert read_headers(cut)[:2] == tuple(
            message_headers.find(cut, f"\r\n{name}:".encode()) or "" for name in (TYPE, MESSAGE_ID)
        )
