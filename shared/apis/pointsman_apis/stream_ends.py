"""Whether a stream that has ended is complete: by its last event or, where an engine sends no mark at the end, by the
reason for which the answer ended."""

from pointsman_apis.api import Api
from pointsman_apis.messages import MESSAGES
from pointsman_apis.streams import DONE, Document, EventSplitter, lenient_document, named_event
from pointsman_apis.texts import objects

_STOP = b"message_stop"


def missing_end(api: Api, end: bytes) -> bytes | None:
    """The bytes that the stream lacks after its last bytes, `end`; none where it has its mark, or where its API has no
    mark. None: the answer itself isn't complete."""
    if api.last_data:
        if end.rstrip().endswith(api.last_data):
            return b""
        return _of_choices(end)
    if api is MESSAGES and _STOP not in end:
        documents = _documents(end)
        if not any(document.get("type") in ("content_block_delta", "message_delta") for document in documents):
            return b""
        return named_event({"type": "message_stop"}) if any(map(_stops, documents)) else None
    return b""


def _of_choices(end: bytes) -> bytes | None:
    """Of a stream of choices; one that has none is an engine's own, whose end isn't known."""
    documents = _documents(end)
    going_on: set[object] = set()
    ended: set[object] = set()
    for choice in (choice for document in documents for choice in objects(document, "choices")):
        (going_on if choice.get("finish_reason") is None else ended).add(choice.get("index", 0))
    if not going_on and not ended:
        return b""
    return DONE if ended and going_on <= ended else None


def _stops(document: Document) -> bool:
    delta = document.get("delta")
    return isinstance(delta, dict) and document.get("type") == "message_delta" and "stop_reason" in delta


def _documents(end: bytes) -> list[Document]:
    splitter = EventSplitter()
    events = [*splitter.feed(end), *splitter.rest()]
    return [document for event in events if (document := lenient_document(event.data)) is not None]
