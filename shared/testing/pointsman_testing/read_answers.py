"""All that a client can read in a stream of `/v1/messages` or `/v1/responses`, which must be a valid one."""

import json
from typing import Any

from pointsman_apis.streams import EventSplitter
from pointsman_testing.continuing_engine import Body


def _hold(true: bool, otherwise: str) -> None:
    if not true:
        raise AssertionError(otherwise)


def _events(data: bytes) -> list[Body]:
    splitter = EventSplitter()
    events = splitter.split_bytes(data)
    _hold(not splitter.rest(), "the stream ends within an event")
    documents: list[Body] = [json.loads(event.data) for event in events]
    _hold(all(event.name == each["type"] for event, each in zip(events, documents, strict=True)), "a wrong name")
    return documents


def read_messages(data: bytes) -> dict[str, Any]:
    """Head, blocks and ends of a stream of `/v1/messages`."""
    first, *events = _events(data)
    _hold(first["type"] == "message_start", "the stream has no beginning")
    blocks: list[Body] = []
    is_open = False
    ends: list[Body] = []
    for event in events:
        _hold(not ends or ends[-1]["type"] != "message_stop", "the stream goes on behind its end")
        match event["type"]:
            case "content_block_start":
                _hold(not is_open and event["index"] == len(blocks), "a block begins within another one")
                is_open = True
                blocks.append({"type": event["content_block"]["type"], "text": "", "signed": 0})
            case "content_block_delta":
                _hold(is_open and event["index"] == len(blocks) - 1, "a delta of no block")
                kind = event["delta"]["type"].removesuffix("_delta")
                if kind == "signature":
                    blocks[-1]["signed"] += 1
                else:
                    _hold(kind == blocks[-1]["type"], "a delta of another block")
                    blocks[-1]["text"] += event["delta"][kind]
            case "content_block_stop":
                _hold(is_open and event["index"] == len(blocks) - 1, "the end of no block")
                is_open = False
            case _:
                _hold(not is_open, "a block has no end")
                ends.append(event)
    return {"head": first, "blocks": blocks, "ends": ends}


def read_responses(data: bytes) -> dict[str, Any]:
    """The response at the end of a stream of `/v1/responses`, without the ids of its items."""
    events = _events(data)
    _hold([event["sequence_number"] for event in events] == list(range(len(events))), "numbers don't follow each other")
    _hold(events[0]["type"] == "response.created", "the stream has no beginning")
    items: list[Body] = []
    opened: Body | None = None
    text, stages = "", list[str]()
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        _hold(event["output_index"] == len(items), "an event of another item")
        if opened is not None and kind not in ("output_item.added", "output_item.done"):
            _hold(event["item_id"] == opened["id"] and event["content_index"] == 0, "another item has this id")
        match kind:
            case "output_item.added":
                _hold(opened is None, "an item begins within another one")
                opened, text, stages = event["item"], "", []
            case "output_text.delta" | "reasoning_text.delta":
                _hold(stages == ["part"], "a text of no part")
                text += event["delta"]
            case "content_part.added":
                _hold(not stages, "two parts")
                stages.append("part")
            case "output_text.done" | "reasoning_text.done":
                _hold(stages == ["part"] and event["text"] == text, "another text was said")
                stages.append("text")
            case "content_part.done":
                _hold(stages == ["part", "text"] and event["part"]["text"] == text, "another part was said")
                stages.append("done")
            case "output_item.done":
                _hold(stages == ["part", "text", "done"] and opened is not None, "an item ends too early")
                _hold(event["item"]["id"] == (opened or {})["id"], "another item ends")
                _hold(event["item"]["content"][0]["text"] == text, "the item has another text")
                items.append(event["item"])
                opened = None
            case _:
                raise AssertionError(kind)
    last = events[-1]
    _hold(last["type"] == "response.completed" and opened is None, "the stream has no end")
    _hold(last["response"]["output"] == items, "the response has other items than the stream")
    begun = {"head": events[0]["response"], "last": last["response"] | {"output": None}}
    return begun | {"items": [item | {"id": ""} for item in items]}
