"""The rest of an answer, in events like those that the client has: the engine that sends it isn't believed.

It may repeat the role, name another id, model or index, write the text again that it was given, count the tokens of the
whole, and go on elsewhere than where the client is.
"""

from array import array
from collections.abc import Sequence
from typing import Final, cast

import msgspec
import orjson

from pointsman_apis.api import Api
from pointsman_apis.beginning import GIVEN_UP
from pointsman_apis.chat import CHAT
from pointsman_apis.streams import Document, EventSplitter, lenient_document
from pointsman_apis.texts import Answer, objects
from pointsman_apis.token_ids import ids_of
from pointsman_apis.usage import UsageTail
from pointsman_contracts.response import Usage
from pointsman_core.lenient_json import write
from pointsman_frontend.domain.resuming.passed_stream import said
from pointsman_frontend.domain.resuming.question import Question
from pointsman_frontend.domain.resuming.thoughts import ThoughtSplitter
from pointsman_providers.reported_error import error_in

_TELLING: Final = 24
"""Characters that an answer doesn't repeat by chance."""
_UNLIKELY: Final = -9999.0
"""The logarithm of a probability that an engine doesn't tell (OpenAI's API reference, `logprobs`)."""
_SLACK: Final = 8
"""Tokens without text of their own."""
_LONG_TOKEN: Final = 16
"""Characters. Few tokens have more."""
_DONE: Final = b"[DONE]"
_LONGEST_EVENT: Final = 2**24
"""Bytes."""
_BROKEN: Final = (*GIVEN_UP, "error")
"""Reasons of ends that break a choice off (vllm-project/vllm #57082)."""


class NotTheRest(Exception):
    """The events can't be the rest of the answer: another engine may be asked. `again`: the same engine may be asked
    from another point; `differs`: it goes on otherwise than the client's answer."""

    def __init__(self, why: str, *, again: bool = False, differs: bool = False) -> None:
        super().__init__(why)
        self.again: Final = again or differs
        self.differs: Final = differs


class Rest:
    """The rest of one choice as it arrives."""

    def __init__(
        self,
        api: Api,
        question: Question,
        head: Answer,
        *,
        sees_tokens: bool,
        stops: Sequence[str],
        counts: bool,
    ) -> None:
        """`head`: the members that the client's events repeat. `sees_tokens`: the client has asked for token ids or for
        probabilities. `stops`: stop strings. `counts`: each event has the usage so far."""
        self._api = api
        self._question = question
        self._head = head
        self._splitter = EventSplitter()
        self._overlap = question.overlap
        self._again: list[int] = question.again.tolist() if sees_tokens else []
        self._untold: list[int] = []
        """New tokens within that text."""
        self._begun = False
        """The first text has come."""
        self._silent = 0
        """Tokens up to the first text."""
        given = question.tail.removesuffix(question.overlap)
        self._echo: str | None = given if question.form == "text" and len(given) >= _TELLING else None
        """The part of the client's text that may still be repeated as a whole."""
        self._held = ""
        """Text that repeats the beginning of the answer so far."""
        self._watched = _Watched(question.tail, stops) if question.form == "text" and stops else None
        self._thoughts = None
        if question.thoughts is not None:
            self._thoughts = ThoughtSplitter(question.thoughts, anew=not question.kept)
        self._tokens = 0
        """Tokens that came."""
        self._prompt_tokens = len(question.sent) - question.kept if counts and question.form == "exact" else 0
        self._limit = question.body.get("max_tokens")
        self._usage = UsageTail()
        self.events = 0
        """Events with text."""
        self.finished = False
        """The choice has ended."""
        self.ended = False
        """The mark at the end of the stream has come."""

    def join(self, data: bytes) -> bytes:
        """The next bytes of the engine; returns whole events for the client, with token ids as the first engine wrote
        them. Raises NotTheRest."""
        if self._question.form == "text":
            self._usage.follow_bytes(data)
        return b"".join([self._joined(document) for document in self._documents(data) if not self.finished])

    @property
    def reported(self) -> Usage | None:
        """As the engine reported it, in the form `text`."""
        return self._usage.read_usage()

    def count_tokens(self) -> int:
        """Tokens of the rest, where their ids weren't told: as the engine counted them, or without those that it was
        given, whichever is nearer to the number of events; that number where neither is near."""
        usage, events = self.reported, self.events
        counted = 0 if usage is None else usage.completion_tokens
        if not counted:
            return events
        nearest = min(counted, max(0, counted - self._question.kept), key=lambda count: abs(count - events))
        return nearest if events <= nearest <= 2 * events + _SLACK else events

    def _documents(self, data: bytes) -> list[Document]:
        events = self._splitter.split_bytes(data)
        if self._splitter.size > _LONGEST_EVENT:
            raise NotTheRest("an event has no end")
        documents: list[Document] = []
        for event in events:
            self.ended |= event.data == _DONE
            if not self.ended and (document := lenient_document(event.data)) is not None:
                documents.append(document)
        return documents

    def _joined(self, document: Document) -> bytes:
        error = error_in(document)
        if error is not None:
            raise NotTheRest(f"the stream had an error: {error.kind or error.status}")
        out = b""
        for members in objects(document, "choices"):
            if members.get("index", 0) == 0 and not self.finished:
                out += self._choice(members)
        return out

    def _choice(self, given: Answer) -> bytes:
        self._check_prompt(given)
        members = given if self._thoughts is None else self._thoughts.complete_marks(given)
        if members is None:
            return b""
        text, thought, called = said(members)
        if thought and self._question.form == "text":
            raise NotTheRest("the engine began to think again")
        ids = ids_of(members.get("token_ids"))
        reason = members.get("finish_reason")
        if reason is not None and (not isinstance(reason, str) or reason in _BROKEN):
            raise NotTheRest(f"the engine ended the answer itself: {reason}")
        if self._question.form == "exact":
            self._check_tokens(members, ids, last=reason is not None)
            if not self._begun:
                self._silent += len(ids or ())
                if text:
                    self._begun = True
                    self._check_beginning(text)
        fresh = self._fresh(text, last=reason is not None)
        told = self._told(ids)
        if self._overlap and self._question.form == "exact":
            # It may still go on otherwise than the client's text.
            self._untold += told
            return b""
        told, self._untold = self._untold + told, []
        if self._watched is not None and fresh and (ended := self._watched.ended(fresh)) is not None:
            fresh, reason = ended, "stop"
        if fresh:
            self.events += 1
        self.finished = reason is not None
        if not (fresh or told or self.finished or called or thought):
            return b""
        return self._written(members, fresh, told, reason, count=None if ids is None else len(ids))

    def _check_prompt(self, members: Answer) -> None:
        """The engine must go on from where it was told to."""
        prompt = ids_of(members.get("prompt_token_ids"))
        if prompt is not None and self._question.sent and prompt != self._question.sent:
            raise NotTheRest("the engine answers another prompt")

    def _check_tokens(self, members: Answer, ids: "array[int] | None", *, last: bool) -> None:
        """Every text must come with its tokens and, where they are asked for, their probabilities."""
        text = members.get("text")
        if not isinstance(text, str):
            raise NotTheRest("the engine's completion has no text")
        if text and not ids and (ids is None or not last):
            raise NotTheRest("the engine tells no token ids")
        self._tokens += len(ids or ())
        if isinstance(self._limit, int) and self._tokens > self._limit:
            raise NotTheRest("the engine brings more tokens than it was asked for")
        if self._question.body.get("logprobs") is not None and ids:
            try:
                told = msgspec.convert(members.get("logprobs"), _Logprobs)
            except (msgspec.ValidationError, UnicodeEncodeError):
                raise NotTheRest("the probabilities of tokens can't be read") from None
            if not len(told.tokens) == len(told.token_logprobs) == len(ids):
                raise NotTheRest("the probabilities aren't those of the tokens")

    def _check_beginning(self, text: str) -> None:
        """Where the prompt ends within a character, vLLM's tokenizer writes all of it before the rest."""
        question = self._question
        tail = question.tail[-_TELLING:]
        doubtful = not (question.whole or question.overlap) and len(text) > _LONG_TOKEN * self._silent
        if doubtful or (len(tail) == _TELLING and tail in text):
            raise NotTheRest("the engine repeats its prompt", again=True)

    def _fresh(self, text: str, *, last: bool) -> str:
        """The part of the text that the client doesn't have."""
        if self._echo is not None:
            self._held += text
            if self._echo.startswith(self._held) and len(self._held) < len(self._echo) and not last:
                return ""
            text, self._held = self._held.removeprefix(self._echo), ""
            self._echo = None
        if self._overlap and text:
            shared = min(len(self._overlap), len(text))
            if self._question.form == "text":
                # Spaces at the end of a message may be lost.
                shared = next((n for n in range(shared, 0, -1) if self._overlap.endswith(text[:n])), 0)
                self._overlap = ""
                return text[shared:] if shared and not text[:shared].strip() else text
            if text[:shared] != self._overlap[:shared]:
                raise NotTheRest("the engine goes on with other text than the client has", differs=True)
            self._overlap = self._overlap[shared:]
            text = text[shared:]
        if last and self._overlap and self._question.form == "exact":
            raise NotTheRest("the engine ends before the text that the client has")
        return text

    def _told(self, ids: "array[int] | None") -> list[int]:
        """Token ids without those that the client has seen."""
        new = [] if ids is None else ids.tolist()
        while self._again and new:
            if new[0] != self._again[0]:
                raise NotTheRest("the engine goes on with other tokens than the client has", differs=True)
            del new[0], self._again[0]
        return new

    def _written(self, members: Answer, text: str, ids: list[int], reason: object, count: int | None) -> bytes:
        choice: Answer = {"index": self._question.choice}
        logprobs = members.get("logprobs")
        known = 0 if count is None else count - len(ids)
        if self._api is CHAT:
            delta = members.get("delta")
            parts = cast("Answer", delta) if isinstance(delta, dict) and self._question.form == "text" else {}
            kept = {name: value for name, value in parts.items() if name not in ("role", "content") and value}
            if self._thoughts is not None:
                thought, text = self._thoughts.split_text(text)
                kept = dict.fromkeys(self._thoughts.names, thought) if thought else {}
            choice["delta"] = kept | {"content": text} if text or not kept else kept
            choice["logprobs"] = logprobs
            if self._question.form == "exact" and isinstance(logprobs, dict):
                choice["logprobs"] = chat_logprobs(cast("Answer", logprobs), max(0, known))
        else:
            choice["text"] = text
            choice["logprobs"] = logprobs
            if isinstance(logprobs, dict):
                choice["logprobs"] = _shifted(cast("Answer", logprobs), self._question.offset, max(0, known))
        choice["finish_reason"] = reason
        if reason is not None and "stop_reason" in members:
            choice["stop_reason"] = members["stop_reason"]
        if self._question.form == "exact":
            prompt = members.get("prompt_token_ids")
            if prompt and self._api is not CHAT and not (self._question.kept or self._question.again):
                choice["prompt_token_ids"] = prompt
            choice["token_ids"] = ids
        document: Answer = self._head | {"choices": [choice]}
        if self._prompt_tokens > 0:
            document["usage"] = _usage(self._prompt_tokens, self._question.kept + self._tokens)
        return b"data: %b\n\n" % write(document)


class _Logprobs(msgspec.Struct):
    """Probabilities as completions tell them."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float | None] | None] | None = None
    text_offset: list[int] | None = None


class _Watched:
    """Looks for stop strings that begin in the text that the client has, where no engine sees them whole."""

    def __init__(self, before: str, stops: Sequence[str]) -> None:
        self._longest = max(map(len, stops))
        self._stops = stops
        self._before = before[-self._longest :]
        self._seen = ""

    def ended(self, text: str) -> str | None:
        """The part of a text that comes before the end of the answer, where a stop string ends in it that began
        before."""
        known, self._seen = len(self._before) + len(self._seen), (self._seen + text)[: self._longest]
        whole = self._before + self._seen
        for stop in self._stops:
            at = whole.find(stop)
            if 0 <= at < len(self._before) < at + len(stop):
                return "" if at + len(stop) >= known else text
        return None


def chat_logprobs(told: Answer, skipped: int) -> Answer:
    """The probabilities of tokens as chats tell them, from the form of completions; without the first `skipped`."""
    tokens = cast("list[str]", told.get("tokens") or [])
    chosen = cast("list[float | None]", told.get("token_logprobs") or [])
    tops = cast("list[dict[str, float | None] | None]", told.get("top_logprobs") or [])
    content: list[Answer] = []
    for place, (token, logprob) in enumerate(zip(tokens, chosen, strict=False)):
        best = tops[place] if place < len(tops) else None
        known = [(name, _UNLIKELY if value is None else value) for name, value in (best or {}).items()]
        ranked = sorted(known, key=lambda item: -item[1])
        content.append(_spelt(token, logprob) | {"top_logprobs": [_spelt(*each) for each in ranked]})
    return {"content": content[skipped:]}


def _spelt(token: str, logprob: float | None) -> Answer:
    return {
        "token": token,
        "logprob": _UNLIKELY if logprob is None else logprob,
        "bytes": list(token.encode("utf-8", "replace")),
    }


def _shifted(told: Answer, offset: int | None, skipped: int) -> Answer:
    """The probabilities of tokens as completions tell them, from where the client's end; without the first
    `skipped`."""
    shifted: Answer = {}
    for name, value in told.items():
        if not isinstance(value, list):
            shifted[name] = value
            continue
        items = cast("list[object]", value)[skipped:]
        if name == "text_offset" and offset is not None:
            items = [each + offset if isinstance(each, int) else each for each in items]
        shifted[name] = items
    return shifted


def usage_event(head: Answer, prompt_tokens: int, completion_tokens: int) -> bytes:
    """The usage at the end of a stream."""
    usage = _usage(prompt_tokens, completion_tokens)
    return b"data: %b\n\n" % orjson.dumps(head | {"choices": [], "usage": usage})


def _usage(prompt_tokens: int, completion_tokens: int) -> Answer:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
