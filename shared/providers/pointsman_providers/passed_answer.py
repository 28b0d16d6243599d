"""Answers in the format that the client speaks: they pass but for the model's name."""

import re
from typing import Final, cast

import orjson
from pydantic import JsonValue

from pointsman_apis.asked_choices import AskedChoices
from pointsman_apis.beginning import says_something
from pointsman_apis.chat import CHAT
from pointsman_apis.messages import MESSAGES
from pointsman_apis.streams import DONE, KEEP_ALIVE, StreamEvent, event, lenient_document, named_event, without_mark
from pointsman_apis.texts import Answer, index_of, objects
from pointsman_contracts.response import Usage
from pointsman_core.json_members import edit_fields
from pointsman_core.lenient_json import write
from pointsman_providers.call_places import CallPlaces, mend_calls
from pointsman_providers.errors import AnswerDocument, BrokenAnswer, document, no_answer
from pointsman_providers.exchange import ProviderQuestion, StreamReader
from pointsman_providers.provider_events import EventTranslator

_NESTED: Final = ("response", "message")
"""Members of an event that are a whole answer themselves: of OpenAI's responses, of Anthropic's messages."""
_LAST: Final = frozenset({"response.completed", "response.failed", "response.incomplete", "message_stop"})
"""Types of events that end streams which end without `[DONE]`."""
_MEMBERS: Final = {
    "chat.completions": "choices",
    "completions": "choices",
    "embeddings": "data",
    "responses": "output",
    "messages": "content",
}
"""The member that every answer of an API has: a list."""
_MAY_BE_EMPTY: Final = frozenset({"responses", "messages"})
_CALLS: Final = b'"tool_calls"'
_LINES: Final = re.compile(rb"[\r\n]")


class Passed:
    """Reads answers to one call."""

    usage: Usage | None = None
    """Stays where it is: in what the client gets."""

    def __init__(self, question: ProviderQuestion) -> None:
        self._asked = question.asked
        self.api: Final = question.api
        self.choices: Final = AskedChoices(
            question.api, question.answers, lambda: lenient_document(question.body) or {}
        )

    def translate_whole(self, body: bytes) -> bytes:
        """Implements `AnswerReader.translate_whole`."""
        body = without_mark(body)
        answer = document(body)
        member = _MEMBERS.get(self.api, "")
        held = answer.fields.get(member)
        if not isinstance(held, list) or not (held or self.api in _MAY_BE_EMPTY):
            raise no_answer(answer.fields, member)
        fault = self.choices.fault_of_document(cast("Answer", answer.fields))
        if fault:
            raise BrokenAnswer(fault)
        if _CALLS in body and mend_calls(answer.fields):
            body = write(answer.fields, strict=answer.strict)
        return self.renamed(body, answer)

    def make_stream_reader(self) -> StreamReader:
        """Whether the client gets a stream of server-sent events."""
        return _PassedStream(self)

    def renamed(self, data: bytes, read: AnswerDocument) -> bytes:
        """The JSON text with the name that the client used. Every other byte stays if all are UTF-8."""
        fields = read.fields
        edits: dict[str, bytes] = {}
        for name in _NESTED:
            inner = fields.get(name)
            if isinstance(inner, dict) and inner.get("model", self._asked) != self._asked:
                edits[name] = write({**inner, "model": self._asked}, strict=read.strict)
        if fields.get("model", self._asked) != self._asked:
            edits["model"] = orjson.dumps(self._asked)
        try:
            data = edit_fields(data, edits)
            if not read.strict:
                data.decode()
        except ValueError:  # bytes before the object, which clients pass over, or that aren't UTF-8
            names = {name: orjson.loads(value) for name, value in edits.items()}
            return write({**fields, **names}, strict=read.strict)
        return data


class _PassedStream(EventTranslator):
    def __init__(self, answer: Passed) -> None:
        super().__init__()
        self._answer = answer
        self._places = CallPlaces()
        self._has_deltas = answer.api == CHAT.name
        self._begun = False
        self._ends = False
        """Some part of the answer has ended."""
        self._open: set[object] = set()
        """The choices that haven't ended."""
        self._choices = answer.choices.follow_stream()

    def _end(self) -> bytes:
        self._end_choices()
        self.ended = True
        # Some services end their streams with the last choice's reason.
        return named_event({"type": "message_stop"}) if self._answer.api == MESSAGES.name else DONE

    def _translate(self, each: StreamEvent) -> bytes:
        if self.ended:
            return b""  # a second mark, or what a client doesn't read any more
        data = each.data.strip()
        if not data:
            return each.comments or (KEEP_ALIVE if each.raw.strip() else b"")
        if data == b"[DONE]":
            if not self._begun:
                raise BrokenAnswer("the stream has an end and no answer")
            self._end_choices()
            self.ended = True
            return DONE
        read = self._read(each, data)
        fields = read.fields
        kind = fields.get("type")
        self._begun = self._begun or says_something(fields)
        self.ended = kind in _LAST
        changed = self._follow(fields)
        self._choices.take_event(cast("Answer", fields))
        self._check_choices()
        if (_CALLS in data and self._places.place_calls(fields)) or changed:
            data = write(fields, strict=read.strict)
        data = self._answer.renamed(data, read)
        if _LINES.search(data) is not None:
            data = write(read.fields, strict=read.strict)
        return event(data, each.name)

    def _read(self, each: StreamEvent, data: bytes) -> AnswerDocument:
        try:
            read = document(data, begun=self.has_begun)
        except BrokenAnswer as broken:
            if broken.error is not None or each.name != "error":
                raise
            raise BrokenAnswer("the provider ended the stream with an error") from None
        if each.name == "error":
            raise no_answer(read.fields, "choices")
        return read

    def _end_choices(self) -> None:
        self._choices.end_stream()
        self._check_choices()

    def _check_choices(self) -> None:
        if self._choices.fault:
            raise BrokenAnswer(self._choices.fault)

    @property
    def has_begun(self) -> bool:
        return self._begun

    @property
    def finished(self) -> bool:
        return self.ended or (self._ends and not self._open and not self._choices.lacks_a_choice())

    def _follow(self, fields: dict[str, JsonValue]) -> bool:
        """Note which choices have ended. Returns whether one got a delta, which clients expect: Azure sends some
        without (microsoft/autogen #6465)."""
        changed = False
        delta = fields.get("delta")
        if fields.get("type") == "message_delta" and isinstance(delta, dict):
            self._ends = self._ends or delta.get("stop_reason") is not None
        for choice in objects(cast("Answer", fields), "choices"):
            if self._has_deltas and not isinstance(choice.get("delta"), dict):
                choice["delta"] = {}
                changed = True
            if not choice.get("finish_reason"):  # some services send empty texts (sglang #3912)
                self._open.add(index_of(choice))
            else:
                self._open.discard(index_of(choice))
                self._ends = True
        return changed
