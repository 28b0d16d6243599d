"""A stream of blocks or items, kept and continued as the stream of a chat that says the same."""

from array import array
from typing import Final, Protocol, cast

from pointsman_apis.api import Api
from pointsman_apis.messages import MESSAGES
from pointsman_apis.texts import Answer, objects
from pointsman_apis.usage import token_count
from pointsman_contracts.response import Usage
from pointsman_frontend.domain.resuming.kept_events import RECENT
from pointsman_frontend.domain.resuming.message_events import MessageEvents
from pointsman_frontend.domain.resuming.passed_stream import PassedStream, documents_in, said
from pointsman_frontend.domain.resuming.response_events import ResponseEvents

_PLACE: Final[Answer] = {"index": 0}


class TranslatedEvents(Protocol):
    """The events of one stream of an API."""

    @property
    def told_prompt(self) -> int:
        """Tokens of the prompt as the first engine counted them; 0 where it didn't."""
        ...

    @property
    def head(self) -> Answer:
        """Members of the events of a chat."""
        ...

    def read_event(self, document: Answer) -> Answer | None:
        """Take an event of the engine; returns the choice of a chat that says the same, None where it says nothing."""
        ...

    def write_part(self, name: str, text: str) -> bytes:
        """The events of more text: `text` or `thinking`."""
        ...

    def write_calls(self, delta: Answer) -> bytes:
        """The events of the tool calls in a delta of a chat."""
        ...

    def write_end(self, choice: Answer, usage: Usage) -> bytes:
        """The last events. `choice`: the last one of the chat, with its reason."""
        ...


class StreamAsChat:
    """Keeps one stream: its last events as they came, of all others the texts."""

    def __init__(self, api: Api, thinking_end: str | None) -> None:
        """`thinking_end`: the mark behind the model's thoughts; None: unknown."""
        self._events: TranslatedEvents = MessageEvents() if api is MESSAGES else ResponseEvents()
        self._recent: list[bytes] = []
        self._stream = PassedStream(one=True, thinking_end=thinking_end)
        self._last: Answer = {}
        """The choice with the reason for which the answer ended."""
        self._usage = Usage(prompt_tokens=0, completion_tokens=0)
        self._thought_events = 0
        self.mark: array[int] | None = None
        """Token ids of the mark behind the thoughts, where the ids of the answer are known."""

    def keep_usual(self, data: bytes) -> bytes | None:
        """Keep a usual event (`StreamKeeper.keep_usual`)."""
        del data
        return None

    def keep_events(self, data: bytes) -> bytes:
        """Keep any events (`StreamKeeper.keep_events`)."""
        self._recent.append(data)
        if len(self._recent) >= RECENT:
            self.read_stream()
        return data

    def read_stream(self) -> PassedStream:
        """All that has passed, as a stream of a chat."""
        for document in documents_in(b"".join(self._recent)):
            choice = self._events.read_event(document)
            if choice is not None:
                self._take(_PLACE | choice)
        self._recent.clear()
        self._stream.forget_texts(keeps_text=True)
        self._stream.head = self._events.head if self._stream.choices else {}
        return self._stream

    def write_rest(self, data: bytes) -> bytes:
        """Take events of a chat, whose choice goes on; returns those that say the same in the client's API."""
        self.read_stream()
        out = b""
        for document in documents_in(data):
            usage = document.get("usage")
            if isinstance(usage, dict):
                told = cast("Answer", usage)
                prompt, completion = (token_count(told.get(name)) for name in ("prompt_tokens", "completion_tokens"))
                self._usage = Usage(prompt_tokens=prompt or 0, completion_tokens=completion or 0)
            for choice in objects(document, "choices"):
                self._take(choice)
                out += self._written(choice)
        return out

    def write_end(self) -> bytes:
        """The last events of the stream, once its choice has ended."""
        prompt = self._events.told_prompt or self._usage.prompt_tokens
        usage = Usage(
            prompt_tokens=prompt,
            completion_tokens=self._usage.completion_tokens,
            reasoning_tokens=self._count_thoughts(),
        )
        return self._events.write_end(self._last, usage)

    def _take(self, choice: Answer) -> None:
        known = self._stream.choices.get(0)
        if known is not None and known.thinking and known.points and not known.ids and _speaks(choice):
            # The event of the chat may have had both: no token need end between them.
            known.points.pop()
        self._stream.take_choice(choice)
        if choice.get("finish_reason"):
            self._last = choice
        self._thought_events += said(choice)[1]

    def _written(self, choice: Answer) -> bytes:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return b""
        parts = cast("Answer", delta)
        thought, text = parts.get("reasoning"), parts.get("content")
        out = self._events.write_part("thinking", thought) if isinstance(thought, str) and thought else b""
        if isinstance(text, str) and text:
            out += self._events.write_part("text", text)
        return out + self._events.write_calls(parts)

    def _count_thoughts(self) -> int:
        """Tokens before the mark; events with thoughts where no token ids are known."""
        choice = self._stream.choices.get(0)
        if choice is None or not self.mark or not choice.thought_names:
            return self._thought_events
        ids, length = choice.ids, len(self.mark)
        ends = (at for at in range(len(ids) - length + 1) if ids[at : at + length] == self.mark)
        return next(ends, len(ids))


def _speaks(choice: Answer) -> bool:
    delta = choice.get("delta")
    return isinstance(delta, dict) and bool(cast("Answer", delta).get("content"))
