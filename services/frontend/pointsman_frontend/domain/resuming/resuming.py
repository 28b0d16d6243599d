"""One streamed request that another engine may continue."""

from array import array
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, NamedTuple, cast

from pointsman_apis.api import Api
from pointsman_apis.asked_choices import indices
from pointsman_apis.beginning import gives_up
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.streams import DONE, EventSplitter, lenient_document
from pointsman_apis.texts import Answer
from pointsman_apis.token_ids import FIELD
from pointsman_core.lenient_json import write
from pointsman_frontend.domain.resuming.joining import Rest, usage_event
from pointsman_frontend.domain.resuming.kept_events import StreamKeeper
from pointsman_frontend.domain.resuming.passed_stream import PassedStream
from pointsman_frontend.domain.resuming.question import (
    Body,
    CantContinue,
    Form,
    Question,
    Start,
    is_open_ended,
    obstacle,
    question_of,
)
from pointsman_providers.reported_error import ProviderError, error_in

EXACT_KIND: Final = "vllm"
TEXT_KINDS: Final = frozenset({"vllm", "sglang"})
"""Kinds of engines whose chats take `continue_final_message`."""
_FAILING: Final = 500
_STEPS_BACK: Final = 4
"""A character has four bytes at most, which are as many tokens at most."""


class Resuming:
    """From the first byte of its stream to the last one, whichever engines send it."""

    _asked: Body | None = None
    """The body as the first engine got it, once the stream broke off."""
    _form: Form = "exact"
    _prompt_tokens = 0
    """As an engine counted them, for choices without token ids."""
    _start = Start()

    def __init__(
        self,
        api: Api,
        attempts: int,
        *,
        kept: StreamKeeper,
        asks_ids: bool,
        keeps_text: bool,
        thinking_end: str | None,
    ) -> None:
        """`attempts`: further engines that may be asked; `asks_ids`: the first one is asked for token ids, which the
        client doesn't get; `keeps_text`: the form `text` is allowed too; `thinking_end`: the mark behind the model's
        thoughts, None where it is unknown."""
        self._api = api
        self._thinking_end = thinking_end
        self._keeps_text = keeps_text
        self.asks_ids: Final = asks_ids
        self.attempts_left = attempts
        self.sent: Callable[[], bytes] = bytes
        """Gives the body as the first engine got it."""
        self.kept: Final[StreamKeeper] = kept
        """The part of the stream that has passed."""

    def break_off(self) -> None:
        """The stream broke off. Raises CantContinue."""
        stream = self._stream
        if not stream.readable:
            raise CantContinue("no_token_ids")
        if not stream.head:
            raise CantContinue("unreadable")
        self._form = self._best_form()
        for index in self.open_choices():
            self._question(index, longest=None, probing=True)

    @property
    def _stream(self) -> PassedStream:
        return self.kept.read_stream()

    @property
    def _body(self) -> Body:
        if self._asked is None:
            self._asked = lenient_document(self.sent()) or {}
        return self._asked

    @cached_property
    def _completed_tokens(self) -> dict[int, int]:
        """Tokens of choices that an engine counted without telling their ids, by index."""
        return {}

    def _best_form(self) -> Form:
        choices = self._stream.choices.values()
        reason = obstacle(self._api, self._body, "exact")
        if reason is None:
            if any(choice.ids for choice in choices) and all(choice.ids_whole for choice in choices):
                return "exact"
            reason = "no_token_ids"
        if self._keeps_text:
            reason = obstacle(self._api, self._body, "text")
        if reason is not None:
            raise CantContinue(reason)
        return "text"

    @property
    def form(self) -> Form:
        """How the last break was answered."""
        return self._form

    @property
    def is_open_ended(self) -> bool:
        """Whether `next_question` needs the engine's longest sequence."""
        return self._form == "exact" and is_open_ended(self._api, self._body)

    @property
    def must_be_tokenized(self) -> bool:
        """Whether only the token ids of `to_tokenize` can continue the answer."""
        return False

    def to_tokenize(self, kind: str) -> Mapping[str, Body]:
        """The questions by which an engine of this kind tells the token ids for `take_tokens`, by name; none where the
        answer goes on without."""
        del kind
        return {}

    def take_tokens(self, told: Mapping[str, "array[int]"]) -> None:
        """The token ids of `to_tokenize`, by name."""

    def can_ask(self, kind: str) -> bool:
        """Whether an engine of this kind can be asked for the rest."""
        if self._form == "exact":
            return kind == EXACT_KIND
        return self._api is COMPLETIONS or kind in TEXT_KINDS

    def open_choices(self) -> list[int]:
        """Indices of the choices that haven't ended."""
        choices = self._stream.choices
        return [
            index
            for index in indices(self._api.name, self._body)
            if (choice := choices.get(index)) is None or not choice.finished
        ]

    def lacks_a_choice(self) -> bool:
        """Whether a choice is known not to have ended."""
        return self._stream.readable and bool(self.open_choices())

    def next_question(self, index: int, longest: int | None) -> Question | None:
        """The request for the rest of a choice; None where only its end is missing: `end_choice` gives that. Raises
        CantContinue."""
        return self._question(index, longest=longest)

    def begin_rest(self, question: Question) -> None:
        """An engine goes on as it was asked to: the tokens behind that point come from it."""
        choice = self._stream.choices.get(question.choice)
        if choice is not None and not self._sees_tokens:
            choice.rewind(question.kept)

    @property
    def _sees_tokens(self) -> bool:
        """Whether the client sees single tokens: each of them must come once."""
        body = self._body
        return (body.get(FIELD) is True and not self.asks_ids) or body.get("logprobs") not in (None, False)

    def _question(self, index: int, *, longest: int | None, probing: bool = False) -> Question | None:
        if probing and self.is_open_ended:
            longest = 2**31
        return question_of(
            self._api,
            self._body,
            self._stream,
            index,
            self._form,
            longest=longest,
            thinking_end=self._thinking_end,
            start=self._start,
        )

    def read_rest(self, question: Question) -> Rest:
        """Reads the answer to a question."""
        stop = self._body.get("stop")
        texts = cast("list[object]", stop) if isinstance(stop, list) else [stop]
        options = self._body.get("stream_options")
        return Rest(
            self._api,
            question,
            self._stream.head,
            sees_tokens=self._sees_tokens,
            counts=isinstance(options, dict) and cast("Answer", options).get("continuous_usage_stats") is True,
            stops=[text for text in texts if isinstance(text, str) and text],
        )

    def change_start(self, *, differs: bool) -> bool:
        """The next question is from another point: the tokens that the client has end within a character, or the engine
        `differs` from the first one. False when that was tried often enough."""
        if differs and not self._start.latest:
            self._start = Start(latest=True)
            return True
        self._start = self._start._replace(steps_back=self._start.steps_back + 1)
        return self._start.steps_back <= _STEPS_BACK

    def pass_rest(self, data: bytes) -> bytes:
        """Take events of the rest; returns them as the client gets them."""
        return self.kept.keep_events(data)

    def end_question(self, question: Question, rest: Rest) -> None:
        """The choice has ended, or its engine broke off."""
        if rest.events:
            self._start = Start()
        if question.form == "text" and rest.finished:
            usage = rest.reported
            self._completed_tokens[question.choice] = question.kept + rest.count_tokens()
            if usage is not None and usage.prompt_tokens:
                alone = usage.prompt_tokens - question.kept
                self._prompt_tokens = alone if alone > 0 else usage.prompt_tokens
        _ = self._stream

    def end_choice(self, index: int) -> bytes:
        """The end of a choice that lacks nothing else: it is as long as it may be."""
        empty: Answer = {"delta": {}} if self._api is CHAT else {"text": ""}
        choice = {"index": index} | empty | {"logprobs": None, "finish_reason": "length"}
        return b"data: %b\n\n" % write(self._stream.head | {"choices": [choice]})

    def end_stream(self, prompt_tokens: int = 0) -> bytes:
        """The last events of a stream whose choices have all ended. `prompt_tokens`: as the stages counted them."""
        return self.usage_due(prompt_tokens) + DONE

    def usage_due(self, prompt_tokens: int = 0) -> bytes:
        """The usage that a stream with all its choices lacks; empty where it wasn't asked for, has come or is
        unknown."""
        passed = self._stream
        options = self._body.get("stream_options")
        if passed.usage_told or not passed.readable or not isinstance(options, dict):
            return b""
        if cast("Answer", options).get("include_usage") is not True or not passed.head:
            return b""
        tokens = sum(self._completed_tokens.get(index) or choice.tokens for index, choice in passed.choices.items())
        return usage_event(passed.head, self._told_prompt() or self._prompt_tokens or prompt_tokens, tokens)

    def _told_prompt(self) -> int:
        """Tokens of all prompts, by their ids; 0 where an engine told none."""
        passed = self._stream
        if self._api is CHAT:
            return len(passed.prompt or ())
        n = max(1, len(indices(self._api.name, self._body | {"prompt": ""})))
        prompts = {index // n: len(each.prompt) for index, each in passed.choices.items() if each.prompt is not None}
        return sum(prompts.values())


class Failure(NamedTuple):
    """An engine ended an answer for its own sake."""

    why: str
    error: ProviderError | None
    """For the client, where the engine gave one."""


def before_failure(data: bytes) -> tuple[bytes, Failure | None]:
    """The whole events before the first one by which an engine ends the answer for its own sake, and that
    failure; None: all of them are the answer's."""
    splitter = EventSplitter()
    passed: list[bytes] = []
    for event in splitter.split_one_by_one(data, last=True):
        document = lenient_document(event.data) if event.data else None
        if document is not None:
            error = error_in(document)
            if error is not None and error.status >= _FAILING:
                why = f"the stream ended with an error: {error.kind or error.status}"
                return b"".join(passed), Failure(why, error)
            if gives_up(document):
                return b"".join(passed), Failure("the engine aborted the request", None)
        passed.append(event.raw)
    return data, None
