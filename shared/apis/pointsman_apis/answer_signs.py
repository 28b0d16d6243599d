"""Signs by which an answer itself tells how good it is: log probabilities, refusals, and how it ended.

Log probabilities of a chat: https://platform.openai.com/docs/api-reference/chat/object; of `/v1/responses`: the member
`logprobs` of a text. Anthropic's API has none.
"""

from collections.abc import Iterator, Mapping
from typing import Final, cast

import msgspec
import orjson

from pointsman_apis.answers import slots_of
from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.responses import RESPONSES
from pointsman_apis.streams import Document, EventSplitter, lenient_document, unambiguous
from pointsman_apis.texts import Answer, is_error, objects
from pointsman_contracts.journey import BodyEdit
from pointsman_core.lenient_json import write

_AT_LIMIT: Final = frozenset({"length", "max_tokens", "max_output_tokens"})
_REFUSED: Final = frozenset({"content_filter", "refusal"})
_INCLUDED: Final = "message.output_text.logprobs"
_DELTA: Final = "response.output_text.delta"
_SPELLING: Final = b'"logprobs"'
_UNUSABLE: Final = -1e4
"""Engines write -9999 for a probability that they don't know."""


class AnswerSigns(msgspec.Struct):
    """The signs of one answer, or of the part of it that was read."""

    logprobs: list[float] = msgspec.field(default_factory=list[float])
    """Natural logarithm, of each token that has one."""
    text: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """Pieces of what the model said, by part."""
    arguments: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """Pieces of the arguments of tools, by part."""
    refused: bool = False
    """Marked by the model or its provider."""
    at_limit: bool = False
    """It ended at a limit of tokens."""
    ended: bool = False
    """A reason was given why it ended."""
    calls_tools: bool = False
    failed: bool = False
    """It is an error, or can't be read."""
    events: int = 0
    """Events with text: about as many as tokens."""

    @property
    def texts(self) -> list[str]:
        """Each text whole."""
        return ["".join(pieces) for pieces in self.text.values()]

    @property
    def mean_logprob(self) -> float | None:
        """None when no token has a log probability."""
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else None

    @property
    def low_logprob(self) -> float | None:
        """The highest log probability of the lowest tenth of the tokens."""
        return sorted(self.logprobs)[(len(self.logprobs) - 1) // 10] if self.logprobs else None


class SignReader:
    """Reads the signs of an answer as it comes."""

    def __init__(self, api: Api, *, stream: bool) -> None:
        self.signs: Final = AnswerSigns()
        self._api: Final = api
        self._splitter: Final = EventSplitter() if stream else None

    def read_bytes(self, data: bytes) -> None:
        """The next bytes of a stream, or a whole document."""
        if self._splitter is None:
            document = lenient_document(data)
            if document is None:
                self.signs.failed = True
            else:
                self._read(document)
            return
        for event in self._splitter.split_bytes(data):
            document = event.document
            if document is not None:
                self._read(document)

    def _read(self, document: Document) -> None:
        signs = self.signs
        if is_error(document):
            signs.failed = True
            return
        said = False
        for slot in slots_of(self._api, document):
            if slot.repeats:
                continue
            if slot.kind == "text":
                signs.text.setdefault(slot.part, []).append(slot.text)
                said = True
            elif slot.kind == "arguments":
                signs.arguments.setdefault(slot.part, []).append(slot.text)
                said = signs.calls_tools = True
            elif slot.kind == "refusal":
                signs.refused = True
        signs.events += said
        signs.calls_tools |= self._api.calls_tools(document)
        for reason in _reasons(self._api, document):
            signs.ended = True
            signs.refused |= reason in _REFUSED
            signs.at_limit |= reason in _AT_LIMIT
            signs.calls_tools |= reason in self._api.tool_ends
        for logprob in _logprobs(self._api, document):
            if type(logprob) in (int, float) and _UNUSABLE < cast("float", logprob) <= 0:
                signs.logprobs.append(float(cast("float", logprob)))


def logprob_edits(api: Api, asked: Mapping[str, object]) -> tuple[BodyEdit, ...]:
    """The changes of a request's body by which engines report log probabilities; none where the client asked itself, or
    the API has none."""
    if api is CHAT and not asked.get("logprobs"):
        return (BodyEdit(field="logprobs", value=True, unasked=True),)
    if api is COMPLETIONS and asked.get("logprobs") is None:
        return (BodyEdit(field="logprobs", value=1, unasked=True),)
    if api is RESPONSES:
        include = asked.get("include")
        named = [str(each) for each in cast("list[object]", include)] if isinstance(include, list) else []
        if _INCLUDED not in named:
            return (BodyEdit(field="include", value=[*named, _INCLUDED], unasked=True),)
    return ()


def without_logprobs(data: bytes, *, stream: bool) -> bytes:
    """Whole events, or a whole document, as without `logprob_edits`."""
    if _SPELLING not in data:
        return data
    if not stream:
        document, strict = unambiguous(data)
        return data if document is None or not _forget(document) else write(document, strict=strict)
    splitter = EventSplitter()
    events = (*splitter.split_bytes(data), *splitter.rest())
    for event in events:
        if event.document is not None and _SPELLING in event.raw:
            event.changed = _forget(event.document)
    return b"".join([event.encode() for event in events])


def _forget(document: Document) -> bool:
    """Remove the log probabilities; whether there were any."""
    found = False
    for choice in objects(document, "choices"):
        found |= choice.get("logprobs") is not None
        if "logprobs" in choice:
            choice["logprobs"] = None
    for holder in _holders(document):
        found |= bool(holder.get("logprobs"))
        if "logprobs" in holder:
            holder["logprobs"] = []
    return found


def _reasons(api: Api, document: Document) -> Iterator[str]:
    yield from api.ends(document)
    response = document.get("response", document)
    details = cast("Answer", response).get("incomplete_details") if isinstance(response, dict) else None
    reason = cast("Answer", details).get("reason") if isinstance(details, dict) else None
    if isinstance(reason, str):
        yield reason


def _logprobs(api: Api, document: Document) -> Iterator[object]:
    if api is RESPONSES:
        # Later events of a stream repeat those of its deltas.
        for holder in (document,) if document.get("type") == _DELTA else _texts_of(document):
            yield from (each.get("logprob") for each in objects(holder, "logprobs"))
        return
    for choice in objects(document, "choices"):
        told = choice.get("logprobs")
        if isinstance(told, dict):
            members = cast("Answer", told)
            tokens = members.get("token_logprobs")
            yield from cast("list[object]", tokens) if isinstance(tokens, list) else ()
            for name in ("content", "refusal"):
                yield from (each.get("logprob") for each in objects(members, name))


def _holders(document: Document) -> Iterator[Answer]:
    """The texts of `/v1/responses` that may have log probabilities, in a whole answer or in any event."""
    yield document
    part, item, response = document.get("part"), document.get("item"), document.get("response")
    if isinstance(part, dict):
        yield cast("Answer", part)
    if isinstance(item, dict):
        yield from objects(cast("Answer", item), "content")
    yield from _texts_of(cast("Answer", response) if isinstance(response, dict) else document)


def _texts_of(response: Answer) -> Iterator[Answer]:
    for output in objects(response, "output"):
        yield from objects(output, "content")


def is_json(text: str) -> bool:
    """Whether a text is a JSON value."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
