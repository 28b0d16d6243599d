"""How a stream ends whose rest is withheld."""

import json
from typing import Any

from pointsman_apis import named
from pointsman_apis.streams import EventSplitter, StreamEvent

Document = dict[str, Any]


def ended(api: str, *seen: Document) -> list[Document]:
    """The events after those that the client has seen."""
    end = named(api).end()
    for event in split(b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in seen)):
        end.note_event(event)
    return [event.document for event in split(end.end_as_filtered()) if event.document is not None]


def split(data: bytes) -> list[StreamEvent]:
    splitter = EventSplitter()
    return [*splitter.split_bytes(data), *splitter.rest()]


def chunk(index: int, finish: str | None = None) -> Document:
    return {"id": "c", "choices": [{"index": index, "delta": {"content": "x"}, "finish_reason": finish}]}


def test_choices_that_have_ended_do_not_end_again() -> None:
    (last,) = ended("chat.completions", chunk(0), chunk(1), chunk(2), chunk(1, "stop"))
    assert last["id"] == "c"
    assert [(each["index"], each["finish_reason"]) for each in last["choices"]] == [
        (0, "content_filter"), (2, "content_filter"),
    ]  # fmt: skip


def test_blocks_that_have_ended_do_not_end_again() -> None:
    begun: list[Document] = [{"type": "content_block_start", "index": index} for index in range(3)]
    events = ended("messages", *begun, {"type": "content_block_stop", "index": 1})
    assert [(event["type"], event.get("index")) for event in events] == [
        ("content_block_stop", 0), ("content_block_stop", 2), ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip


def test_a_response_goes_on_counting_and_says_why_it_is_incomplete() -> None:
    created = {"type": "response.created", "sequence_number": 4, "response": {"id": "r", "status": "in_progress"}}
    (last,) = ended("responses", created, {"type": "response.output_text.delta", "delta": "x"})
    assert (last["sequence_number"], last["response"]["id"], last["response"]["status"]) == (6, "r", "incomplete")


def test_events_that_no_engine_should_send_end_a_stream_no_other_way() -> None:
    strange: list[Document] = [{"choices": ["x", None]}, {"choices": "x"}, {"choices": {"index": 0}}, chunk(0)]
    (last,) = ended("chat.completions", *strange)
    assert [each["index"] for each in last["choices"]] == [0]
    (incomplete,) = ended("responses", {"type": "x", "sequence_number": "7", "response": []})
    assert incomplete["type"] == "response.incomplete"
