"""How a stream ends whose rest is withheld: as its API says that content was filtered."""

from collections.abc import Mapping
from typing import Final, cast

import orjson

from pointsman_edge.taking_in.routes import MESSAGES, RESPONSES
from pointsman_edge.telling.answer_texts import objects
from pointsman_edge.telling.stream_events import Document, StreamEvent

REASON: Final = "content_filter"
"""OpenAI's `finish_reason`."""
_HEAD: Final = ("id", "object", "created", "model", "system_fingerprint")


class StreamEnd:
    """Remembers of a stream what its end must say."""

    def __init__(self, api: str) -> None:
        self._api = api
        self._head: Document = {}
        self._open: dict[object, None] = {}
        self._number = -1

    def saw(self, event: StreamEvent) -> None:
        """An event has left for the client."""
        document = event.document
        if document is None:
            return
        if self._api == MESSAGES:
            if document.get("type") == "content_block_start":
                self._open[document.get("index", 0)] = None
            elif document.get("type") == "content_block_stop":
                self._open.pop(document.get("index", 0), None)
        elif self._api == RESPONSES:
            number = document.get("sequence_number")
            self._number = number if isinstance(number, int) else self._number + 1
            response = document.get("response")
            if isinstance(response, dict):
                self._head = cast("Document", response)
        else:
            self._head = {name: document[name] for name in _HEAD if name in document}
            for choice in objects(document, "choices"):
                if choice.get("finish_reason") is None:
                    self._open[choice.get("index", 0)] = None
                else:
                    self._open.pop(choice.get("index", 0), None)

    def filtered(self) -> bytes:
        """The last events."""
        if self._api == MESSAGES:
            stops = [_named({"type": "content_block_stop", "index": index}) for index in self._open]
            delta: Document = {"stop_reason": "refusal", "stop_sequence": None}
            end = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 0}}
            return b"".join((*stops, _named(end), _named({"type": "message_stop"})))
        if self._api == RESPONSES:
            response = self._head | {"status": "incomplete", "incomplete_details": {"reason": REASON}}
            event = {"type": "response.incomplete", "sequence_number": self._number + 1, "response": response}
            return _named(event)
        content: Document = {"delta": {}} if self._api == "chat.completions" else {"text": ""}
        choices = [{"index": index} | content | {"logprobs": None, "finish_reason": REASON} for index in self._open]
        return b"data: " + orjson.dumps(self._head | {"choices": choices}) + b"\n\ndata: [DONE]\n\n"


def _named(event: Mapping[str, object]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), orjson.dumps(event))
