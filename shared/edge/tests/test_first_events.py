"""Where a stream begins to say something: the quick look at its first bytes finds what reading each event finds."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_edge.sending.first_events import FirstEvents, InPlaceOfAnswer

EVENTS: Final = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": "\\u00e9"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"Hm"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[{"index":0,"text":""}]}\n\n',
    b'data: {"choices":[{"index":0,"text":"Hi"}]}\n\n',
    b'data: {"choices":[],"prompt_filter_results":[{"content_filter_results":{}}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3}}\n\n',
    b'data: {"error":{"message":"busy","code":503}}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}}]}\n\n',
    b'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}\n\n',
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"Hi"}}\n\n',
    b": ping\n\n",
    b"data: [DONE]\n\n",
)


def found(data: bytes, *before: bytes) -> bool | str:
    first = FirstEvents()
    try:
        for each in before:
            assert not first.feed(each, last=False)
        return first.feed(data, last=True)
    except InPlaceOfAnswer as failed:
        return str(failed)


@given(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=5))
def test_the_quick_look_finds_what_reading_each_event_finds(events: list[bytes]) -> None:
    data = b"".join(events)
    # Behind a comment, each event is read.
    assert found(data) == found(data, b": begun\n\n")


@pytest.mark.parametrize("place", range(1, len(EVENTS[2]) - 1))
def test_a_part_of_an_event_says_nothing(place: int) -> None:
    first = FirstEvents()
    assert not first.feed(EVENTS[2][:place], last=False)
    assert first.feed(EVENTS[2][place:], last=False)
