"""One streamed request that another engine may continue."""

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, cast

from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.completions import COMPLETIONS
from pointsman_apis.streams import DONE, EventSplitter, lenient_document
from pointsman_apis.texts import Answer, objects
from pointsman_apis.token_ids import FIELD
from pointsman_contracts.journey import BodyEdit
from pointsman_core.lenient_json import write
from pointsman_frontend.domain.resuming.joining import Rest, usage_event
from pointsman_frontend.domain.resuming.passed_stream import PassedStream
from pointsman_frontend.domain.resuming.question import (
    APIS,
    Body,
    CantContinue,
    Form,
    Question,
    has_one_choice,
    indices,
    is_open_ended,
    obstacle,
    question_of,
)
from pointsman_providers.reported_error import ProviderError, error_in

Setting = Literal["off", "exact", "text"]
_STREAM: Final = re.compile(rb'"stream"\s*:\s*true\b')
"""Can't be part of a prompt: a quote inside a JSON string is written `\\"`."""
_DOUBTFUL: Final = tuple(
    b'"%b"' % name.encode()
    for name in (
        *("tools", "response_format", "structured_outputs", "functions", "echo", "suffix", "presence_penalty"),
        *("frequency_penalty", "use_beam_search", "best_of", "prompt_embeds", "image_url", "modalities"),
    )
)
"""Members with which an answer often can't be continued: only then is the body read before the request is sent."""
_ASKS: Final = (BodyEdit(field=FIELD, value=True, unasked=True),)
_EXACT_KIND: Final = "vllm"
_TEXT_KINDS: Final = frozenset({"vllm", "sglang"})
"""Kinds of engines whose chats take `continue_final_message`."""
_FAILING: Final = 500
_STEPS_BACK: Final = 4
"""A character has four bytes at most, which are as many tokens at most."""


def asks_stream(api: Api, body: bytes) -> bool:
    """Whether a body asks for a stream of an API that can be continued."""
    return api in APIS and _STREAM.search(body) is not None


def resuming_of(api: Api, body: bytes, setting: Setting, attempts: int, kind: str) -> "Resuming | None":
    """For a request with this body that asks for a stream, before an engine of this kind gets it; None where its stream
    can't be continued."""
    if setting == "off" or not attempts or not asks_stream(api, body):
        return None
    exact = kind == _EXACT_KIND
    text = setting == "text" and (api is COMPLETIONS or kind in _TEXT_KINDS)
    if (exact or text) and any(name in body for name in _DOUBTFUL):
        document = lenient_document(body) or {}
        exact = exact and obstacle(api, document, "exact") is None
        text = text and obstacle(api, document, "text") is None
    return Resuming(api, body, attempts, exact=exact, text=text) if exact or text else None


class Resuming:
    """From the first byte of its stream to the last one, whichever engines send it."""

    def __init__(self, api: Api, body: bytes, attempts: int, *, exact: bool, text: bool) -> None:
        """`attempts`: further engines that may be asked. `exact` and `text`: the forms that are allowed."""
        self._api = api
        self._text = text
        self.exact: Final = exact
        self._sees_ids = b'"return_token_ids"' in body
        self.attempts_left = attempts
        self.edits: Final[Sequence[BodyEdit]] = _ASKS if exact and not self._sees_ids else ()
        """Changes of the body for the first engine."""
        self._passed = PassedStream(one=has_one_choice(api, body), keeps_text=text, strips=bool(self.edits))
        self._asked: Body = {}
        self._form: Form = "exact"
        self._counted: dict[int, int] = {}
        """Tokens of choices that an engine counted without telling their ids, by index."""
        self._prompt_tokens = 0
        """As an engine counted them, for choices without token ids."""
        self._steps_back = 0
        self.sent: Callable[[], bytes] = lambda: body
        """Gives the body as the first engine got it."""
        self.begun = False
        """Something of the stream has passed."""

    def pass_on(self, data: bytes) -> bytes:
        """Keep whole events of an engine; returns them for the client."""
        self.begun = True
        return self._passed.pass_on(data)

    def break_off(self) -> None:
        """The stream broke off. Raises CantContinue."""
        self._read()
        if not self._passed.readable:
            raise CantContinue("no_token_ids")
        if not self._passed.head:
            raise CantContinue("unreadable")
        self._form = self._best_form()
        for index in self.open_choices():
            self._question(index, longest=None, probing=True)

    def _read(self) -> None:
        self._passed.read_kept()
        if not self._asked:
            self._asked = lenient_document(self.sent()) or {}

    def _best_form(self) -> Form:
        reason = "no_token_ids"
        if self.exact:
            reason = obstacle(self._api, self._asked, "exact") or ""
            told = all(choice.ids_whole for choice in self._passed.choices.values())
            if not reason and told and any(choice.ids for choice in self._passed.choices.values()):
                return "exact"
            reason = reason or "no_token_ids"
        if not self._text:
            raise CantContinue(reason)
        reason = obstacle(self._api, self._asked, "text") or ""
        if reason:
            raise CantContinue(reason)
        return "text"

    @property
    def form(self) -> Form:
        """How the last break was answered."""
        return self._form

    @property
    def is_open_ended(self) -> bool:
        """Whether `next_question` needs the engine's longest sequence."""
        return self._form == "exact" and is_open_ended(self._api, self._asked)

    def can_ask(self, kind: str) -> bool:
        """Whether an engine of this kind can be asked for the rest."""
        if self._form == "exact":
            return kind == _EXACT_KIND
        return self._api is COMPLETIONS or kind in _TEXT_KINDS

    def open_choices(self) -> list[int]:
        """Indices of the choices that haven't ended."""
        choices = self._passed.choices
        return [
            index
            for index in indices(self._api, self._asked)
            if (choice := choices.get(index)) is None or not choice.finished
        ]

    def lacks_a_choice(self) -> bool:
        """Whether a choice is known not to have ended."""
        self._read()
        return self._passed.readable and bool(self.open_choices())

    def next_question(self, index: int, longest: int | None) -> Question | None:
        """The request for the rest of a choice; None where only its end is missing: `end_choice` gives that. Raises
        CantContinue."""
        question = self._question(index, longest=longest)
        choice = self._passed.choices.get(index)
        if question is not None and choice is not None and not self._sees_tokens:
            choice.rewind(question.kept)
        return question

    @property
    def _sees_tokens(self) -> bool:
        """Whether the client sees single tokens: each of them must come once."""
        return self._sees_ids or self._asked.get("logprobs") not in (None, False)

    def _question(self, index: int, *, longest: int | None, probing: bool = False) -> Question | None:
        if probing and self.is_open_ended:
            longest = 2**31
        return question_of(
            self._api,
            self._asked,
            self._passed,
            index,
            self._form,
            longest=longest,
            steps_back=self._steps_back,
        )

    def read_rest(self, question: Question) -> Rest:
        """Reads the answer to a question."""
        stop = self._asked.get("stop")
        texts = cast("list[object]", stop) if isinstance(stop, list) else [stop]
        return Rest(
            self._api,
            question,
            self._passed.head,
            sees_tokens=self._sees_tokens,
            stops=[text for text in texts if isinstance(text, str) and text],
        )

    def step_back(self) -> bool:
        """The tokens that the client has end within a character: the next question is from an earlier point. False when
        that was tried often enough."""
        self._steps_back += 1
        return self._steps_back <= _STEPS_BACK

    def end_question(self, question: Question, rest: Rest) -> None:
        """The choice has ended, or its engine broke off."""
        if rest.events:
            self._steps_back = 0
        if question.form == "text" and rest.finished:
            usage = rest.reported
            self._counted[question.choice] = question.kept + rest.count_tokens()
            if usage is not None and usage.prompt_tokens:
                alone = usage.prompt_tokens - question.kept
                self._prompt_tokens = alone if alone > 0 else usage.prompt_tokens
        self._passed.read_kept()

    def end_choice(self, index: int) -> bytes:
        """The end of a choice that lacks nothing else: it is as long as it may be."""
        empty: Answer = {"delta": {}} if self._api is CHAT else {"text": ""}
        choice = {"index": index} | empty | {"logprobs": None, "finish_reason": "length"}
        return b"data: %b\n\n" % write(self._passed.head | {"choices": [choice]})

    def end_stream(self, prompt_tokens: int = 0) -> bytes:
        """The last events of a stream whose choices have all ended. `prompt_tokens`: as the stages counted them."""
        return self.usage_due(prompt_tokens) + DONE

    def usage_due(self, prompt_tokens: int = 0) -> bytes:
        """The usage that a stream with all its choices lacks; empty where it wasn't asked for, has come or is
        unknown."""
        passed = self._passed
        self._read()
        options = self._asked.get("stream_options")
        if passed.usage_told or not passed.readable or not isinstance(options, dict):
            return b""
        if cast("Answer", options).get("include_usage") is not True or not passed.head:
            return b""
        tokens = sum(self._counted.get(index) or choice.tokens for index, choice in passed.choices.items())
        return usage_event(passed.head, self._told_prompt() or self._prompt_tokens or prompt_tokens, tokens)

    def _told_prompt(self) -> int:
        """Tokens of all prompts, by their ids; 0 where an engine told none."""
        passed = self._passed
        if self._api is CHAT:
            return len(passed.prompt or ())
        n = max(1, len(indices(self._api, self._asked | {"prompt": ""})))
        prompts = {index // n: len(each.prompt) for index, each in passed.choices.items() if each.prompt is not None}
        return sum(prompts.values())


class Failure(NamedTuple):
    """An engine ended an answer for its own sake."""

    why: str
    error: ProviderError | None
    """For the client, where the engine gave one."""


def before_failure(data: bytes) -> tuple[bytes, Failure | None]:
    """Of whole events, those before the first one by which an engine ends the answer for its own sake, and that
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
            if any(choice.get("finish_reason") == "abort" for choice in objects(document, "choices")):
                return b"".join(passed), Failure("the engine aborted the request", None)
        passed.append(event.raw)
    return data, None
