"""Whether an answer that has ended says nothing, or one short text over and over. Its client has it as it is; peers of
its engine tell whether the engine is broken or the request asks for that."""

import re
from typing import Final

from pointsman_apis.answers import slots_of
from pointsman_apis.api import Api
from pointsman_apis.streams import EventSplitter, lenient_document
from pointsman_apis.usage import KEPT, UsageTail
from pointsman_edge.sending.error_shape import is_silent
from pointsman_edge.sending.first_events import FirstEvents
from pointsman_edge.sending.moving_on import EMPTY, REPEATING

MOST_TOKENS: Final = 2
"""Of an answer without a word: the token that ends it, and one before."""
_LENGTH: Final = b'"length"'
_MAX: Final = b'"max_'
_LAST: Final = 1024
"""Bytes of the end that have the reason of the end: usage follows it at most."""
_AT_LIMIT: Final = re.compile(
    rb'"(?:finish_reason|stop_reason|reason)"\s*:\s*"(?:length|max_tokens|max_output_tokens)"'
)
"""An engine whose scores aren't numbers any more never chooses the token that ends an answer."""
LONGEST: Final = 8
"""Characters, or bytes, of the text that repeats itself: of one token."""
_IN_EVENTS: Final = 16
"""Times; each of the last events of a stream has one token (vllm-project/vllm #51039, ggml-org/llama.cpp #7421)."""
_IN_DOCUMENT: Final = 32
_QUOTES: Final = b'\\"' * _IN_DOCUMENT + b'"'
"""The end of a text of quotes."""
_STRINGS: Final = 64
"""Strings that are looked at, from the end of a document: its text comes before a few other members."""
_WHITE_SPACE: Final = b" \\ntr"
"""Models that have to write JSON go on with it until their limit; that is the request's doing."""
_DATA: Final = b"data:"
_TEXT: Final = re.compile(rb'"(?:content|text|delta)"\s*:\s*"((?:[^"\\]|\\.)*)"')
_SEEN: Final = 1280
"""Bytes of the end in which a few texts are searched before its events are read."""
_SAME: Final = 8
_PERIOD: Final = 6 * LONGEST
"""Bytes of the longest repeated text, each of its characters written `\\u0000`."""


def doubt_of(api: Api, tail: UsageTail, outcome: str, completion_tokens: int) -> str:
    """EMPTY or REPEATING, and "" for any other answer. `tail`: of the whole answer; `outcome`: of its request."""
    if not api.generates or api.passed or outcome not in ("ok", "client_gone"):
        return ""
    end = tail.end
    stream = _DATA in end
    if outcome == "ok" and completion_tokens <= MOST_TOKENS and tail.size <= KEPT:
        return EMPTY if _is_empty(end, stream=stream) else ""
    # A client that leaves has seen a part of a stream, and nothing of a document.
    if not (stream and outcome == "client_gone") and not _is_at_limit(end):
        return ""
    return REPEATING if (_events_repeat(api, end) if stream else _document_repeats(end)) else ""


def _is_at_limit(end: bytes) -> bool:
    # A search in a few bytes is all that most answers cost.
    last = end[-_LAST:]
    return (_LENGTH in last or _MAX in last) and _AT_LIMIT.search(last) is not None


def _is_empty(end: bytes, *, stream: bool) -> bool:
    if not stream:
        return is_silent(end)
    first = FirstEvents()
    says = first.feed(end, last=True, past_finish=True)
    return first.finished and (first.is_empty or not says)


def _may_repeat(end: bytes) -> bool:
    """Whether the last texts of a stream end as repeated ones do. Reading the events of an answer that doesn't costs
    ten times as much."""
    texts = b"".join(_TEXT.findall(end[-_SEEN:]))
    size = len(texts)
    return size < 2 * _SAME or texts.rfind(texts[-_SAME:], max(0, size - _SAME - _PERIOD), size - 1) >= 0


def _events_repeat(api: Api, end: bytes) -> bool:
    if not _may_repeat(end):
        return False
    splitter = EventSplitter()
    events = [*splitter.split_bytes(end), *splitter.rest()]
    documents = filter(None, (lenient_document(event.data) for event in events))
    text = "".join(slot.text for document in documents for slot in slots_of(api, document) if not slot.repeats)
    units = (text[-length:] for length in range(1, LONGEST + 1))
    return any(unit.strip() and text.endswith(unit * _IN_EVENTS) for unit in units)


def _document_repeats(end: bytes) -> bool:
    # Not by a regular expression: its time would grow with the square of the length of the repetition.
    *strings, _ = end.rsplit(b'"', _STRINGS)
    for string in [each for each in strings if len(each) >= _IN_DOCUMENT]:
        size = len(string)
        if string.rfind(string[-LONGEST:], size - 2 * LONGEST, size - 1) >= 0:
            units = (string[-length:] for length in range(1, LONGEST + 1))
            if any(unit.strip(_WHITE_SPACE) and string.endswith(unit * _IN_DOCUMENT) for unit in units):
                return True
    return _QUOTES in end
