"""Streams cut into events, however their bytes arrive."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_apis.chat import CHAT
from pointsman_apis.messages import MESSAGES
from pointsman_apis.stream_ends import missing_end
from pointsman_apis.streams import DONE, EventSplitter, StreamEvent
from pointsman_contracts.journey import BodyEdit

ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])
LINE = st.text(max_size=12).map(lambda text: b"data: " + json.dumps({"x": text}).encode())


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], bytes, list[int]]:
    end = draw(ENDS)
    events = [line + end for line in draw(st.lists(LINE, max_size=6))]
    begun = draw(st.one_of(st.just(b""), LINE))
    size = len(b"".join(events)) + len(begun)
    return events, begun, sorted(draw(st.lists(st.integers(min_value=0, max_value=size), max_size=8)))


@given(streams())
def test_events_come_out_one_by_one_with_their_very_bytes(stream: tuple[list[bytes], bytes, list[int]]) -> None:
    events, begun, cuts = stream
    data = b"".join(events) + begun
    splitter = EventSplitter()
    out: list[StreamEvent] = []
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        out += splitter.split_bytes(data[start:stop])
    assert [event.encode() for event in out] == events
    assert all(event.document is not None for event in out)
    assert b"".join(event.encode() for event in splitter.rest()) == begun


def test_a_changed_event_keeps_its_name_and_what_is_not_json_stays_as_it_came() -> None:
    [named, done, odd] = EventSplitter().split_bytes(b'event: e\ndata: {"a":\ndata: 1}\n\ndata: [DONE]\n\n: ping\n\n')
    assert named.document == {"a": 1}
    named.set([BodyEdit(field="a", value=2)])
    assert named.encode() == b'event: e\ndata: {"a":2}\n\n'
    assert (done.document, odd.document) == (None, None)
    assert done.encode() + odd.encode() == b"data: [DONE]\n\n: ping\n\n"


@pytest.mark.parametrize("index", [None, "x", [], {}, 1.5, [0]])
def test_an_index_of_any_kind_ends_what_it_began(index: object) -> None:
    begun, ended = _choice(index, None), _choice(index, "stop")
    stream = b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in (begun, ended))
    assert missing_end(CHAT, stream, broken=True) == DONE
    assert missing_end(CHAT, stream[: stream.index(b"\n\n") + 2], broken=True) is None
    for api, events in ((CHAT, [begun, ended]), (MESSAGES, _blocks(index))):
        end = api.end()
        assert end is not None
        for each in events:
            end.note_event(StreamEvent(b"data: " + orjson.dumps(each) + b"\n\n"))
        assert b'"index"' not in end.end_as_filtered()


def _choice(index: object, reason: str | None) -> dict[str, object]:
    empty: dict[str, object] = {}
    return {"choices": [{"index": index, "delta": empty, "finish_reason": reason}]}


def _blocks(index: object) -> list[dict[str, object]]:
    return [{"type": f"content_block_{kind}", "index": index} for kind in ("start", "stop")]
