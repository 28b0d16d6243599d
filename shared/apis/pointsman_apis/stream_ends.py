"""Whether a stream that has ended is complete: by its last event or, where an engine sends no mark at the end, by the
reason for which the answer ended."""

import re
from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.messages import MESSAGES
from pointsman_apis.streams import DONE, Document, EventSplitter, lenient_document, named_event
from pointsman_apis.texts import index_of, objects

_DONE: Final = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
"""Can't be part of a text: an end of line inside a JSON string is written `\\n`."""
_USUAL_DONE: Final = b"\ndata: [DONE]"
_STOP: Final = "message_stop"
_DELTAS: Final = frozenset({"content_block_delta", "message_delta"})
_LAST: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})


def missing_end(api: Api, end: bytes, *, broken: bool = False) -> bytes | None:
    """The bytes that the stream lacks after its last bytes, `end`; none where it has its mark. None: the answer itself
    isn't complete. `broken`: the connection broke off; otherwise a stream whose end isn't known is complete."""
    if api.last_data:
        # The mark may lack its empty line, come twice, and have events behind it.
        # The expression tries each byte of some kilobytes, which a search for the usual mark doesn't.
        done = end.rfind(_USUAL_DONE) >= 0 or _DONE.search(end) is not None
        return b"" if done else _of_choices(end, None if broken else b"")
    if api is MESSAGES and not broken and _STOP.encode() in end:
        return b""
    if api is MESSAGES:
        # A part of an event doesn't reach the client of a stream that broke off.
        documents = _documents(end, whole=broken)
        if any(document.get("type") == _STOP for document in documents):
            return b""
        if any(map(_stops, documents)):
            return named_event({"type": _STOP})
        return None if broken or any(document.get("type") in _DELTAS for document in documents) else b""
    if broken:
        documents = _documents(end, whole=True)
        return b"" if any(document.get("type") in _LAST for document in documents) else None
    return b""


def whole_event(last: bytes) -> bytes:
    """The last bytes of a stream, with the empty line that may be missing at its end."""
    if not last or last.endswith((b"\n\n", b"\r\r", b"\n\r\n")):
        return last
    return last + (b"\n" if last.endswith(b"\n") else b"\n\n")


def _of_choices(end: bytes, unknown: bytes | None) -> bytes | None:
    """The end of a stream of choices; `unknown` for an engine's own format without choices."""
    documents = _documents(end)
    going_on: set[object] = set()
    ended: set[object] = set()
    for choice in (choice for document in documents for choice in objects(document, "choices")):
        (ended if choice.get("finish_reason") else going_on).add(index_of(choice))
    if not going_on and not ended:
        return unknown
    return DONE if ended and going_on <= ended else None


def _stops(document: Document) -> bool:
    delta = document.get("delta")
    return isinstance(delta, dict) and document.get("type") == "message_delta" and "stop_reason" in delta


def _documents(end: bytes, *, whole: bool = False) -> list[Document]:
    splitter = EventSplitter()
    events = [*splitter.split_bytes(end), *([] if whole else splitter.rest())]
    return [document for event in events if (document := lenient_document(event.data)) is not None]
