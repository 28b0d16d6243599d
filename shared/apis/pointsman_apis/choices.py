"""The common parts of chats and completions: sampling, `choices`, and how their streams end."""

from collections.abc import Iterator
from typing import Final

import orjson

from pointsman_apis import fields as f
from pointsman_apis.fields import Fields
from pointsman_apis.streams import DONE, StreamEvent
from pointsman_apis.texts import Answer, index_of, objects

FILTERED: Final = "content_filter"
"""OpenAI's `finish_reason` for an answer that a filter ended."""
_HEAD: Final = ("id", "object", "created", "model", "system_fingerprint")

SAMPLING: Final[Fields] = {
    **f.COMMON,
    "max_tokens": f.COUNT,
    "n": f.POSITIVE,
    "stop": f.TEXT_OR_TEXTS,
    "seed": f.INTEGER,
    "presence_penalty": f.NUMBER,
    "frequency_penalty": f.NUMBER,
    "logit_bias": f.OBJECT,
    "response_format": f.OBJECT,
}


def finish_reasons(document: Answer) -> Iterator[str]:
    """Why choices ended."""
    for choice in objects(document, "choices"):
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            yield reason


class ChoicesEnd:
    """Follows a stream of `choices`."""

    def __init__(self, empty: Answer) -> None:
        """`empty`: the members of a choice that brings no text."""
        self._empty = empty
        self._head: Answer = {}
        self._open: dict[object, None] = {}

    def note_event(self, event: StreamEvent) -> None:
        """An event has left for the client."""
        document = event.document
        if document is None:
            return
        self._head = {name: document[name] for name in _HEAD if name in document}
        for choice in objects(document, "choices"):
            if choice.get("finish_reason"):
                self._open.pop(index_of(choice), None)
            else:
                self._open[index_of(choice)] = None

    def end_as_filtered(self) -> bytes:
        """The events that end a stream early because its content was filtered, in the API's form."""
        ended = {"logprobs": None, "finish_reason": FILTERED}
        choices = [{"index": index} | self._empty | ended for index in self._open]
        return b"data: " + orjson.dumps(self._head | {"choices": choices}) + b"\n\n" + DONE
