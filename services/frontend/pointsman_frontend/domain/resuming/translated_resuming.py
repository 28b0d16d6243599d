"""A stream of `/v1/messages` or `/v1/responses`, which is continued as the chat that engines make of it.

Its first engine told no token ids. An engine that can cut texts into tokens (vLLM's `/tokenize`) does so with the chat
and with the answer so far, and goes on from these ids. Any other goes on with the last message of the chat.
"""

from array import array
from collections.abc import Mapping
from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.chat import CHAT
from pointsman_apis.streams import lenient_document
from pointsman_frontend.domain.resuming.as_chat import chat_of
from pointsman_frontend.domain.resuming.passed_stream import PassedChoice
from pointsman_frontend.domain.resuming.question import Body, Form, Question, held_back, obstacle
from pointsman_frontend.domain.resuming.resuming import EXACT_KIND, TEXT_KINDS, Resuming
from pointsman_frontend.domain.resuming.stream_as_chat import StreamAsChat
from pointsman_frontend.domain.resuming.thoughts import first_mark

_NEAR: Final = 16
"""Tokens at the end of a prompt in which a chat template may open or close thoughts."""
_EARLY: Final = 64
"""The end of each of the first events of an answer is kept, up to this many events."""


class TranslatedResuming(Resuming):
    """From the first byte of its stream to the last one, whichever engines send it."""

    def __init__(self, api: Api, attempts: int, thinking_end: str | None) -> None:
        """Arguments like those of `Resuming`. `api`: the client's."""
        answer = StreamAsChat(api, thinking_end)
        super().__init__(CHAT, attempts, kept=answer, asks_ids=False, keeps_text=True, thinking_end=thinking_end)
        self._client_api = api
        self._answer = answer

    @property
    def _body(self) -> Body:
        if self._asked is None:
            self._asked = chat_of(self._client_api, lenient_document(self.sent()) or {})
        return self._asked

    @property
    def _passed_choice(self) -> PassedChoice:
        return self._stream.choices.get(0) or PassedChoice()

    @property
    def _can_be_tokenized(self) -> bool:
        choice = self._passed_choice
        thoughts_known = self._thinking_end is not None or not choice.thought_names
        return thoughts_known and not choice.called and obstacle(CHAT, self._body, "exact") is None

    @property
    def _boundary(self) -> int:
        """Characters of the answer that the next engine gets: where a token ends, as far as that is known. In the text
        behind it a stop string could begin; greedy sampling brings that text again."""
        choice, held = self._passed_choice, held_back(self._body)
        if not held or self._body.get("temperature") != 0:
            return choice.characters
        ends = (point.characters + held for point in reversed(choice.points))
        otherwise = 0 if choice.events <= _EARLY else choice.characters
        end = next((end for end in ends if end <= choice.characters), otherwise)
        within_mark = self._thoughts_end < end < choice.answer_at
        return self._thoughts_end if within_mark else end

    @property
    def _thoughts_end(self) -> int:
        """Characters of the thoughts."""
        choice = self._passed_choice
        return choice.characters if choice.thinking else max(0, choice.answer_at - len(self._thinking_end or ""))

    @property
    def _is_thought(self) -> bool:
        """Whether the boundary is within the thoughts, or where they end."""
        return bool(self._passed_choice.thought_names) and self._boundary <= self._thoughts_end

    @property
    def must_be_tokenized(self) -> bool:
        """Whether only token ids can continue the answer: its thoughts are under way."""
        return self._form == "text" and self._passed_choice.thinking

    def to_tokenize(self, kind: str) -> Mapping[str, Body]:
        """The questions by which an engine of this kind tells the token ids for `take_tokens`, by name."""
        if kind != EXACT_KIND or self._form == "exact" or not self._can_be_tokenized:
            return {}
        body, choice = self._body, self._passed_choice
        chat = {name: body[name] for name in ("model", "messages", "tools") if name in body}
        chat |= {name: body[name] for name in ("add_generation_prompt", "continue_final_message") if name in body}
        effort = body.get("reasoning_effort")
        variables = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        given = body.get("chat_template_kwargs")
        chat["chat_template_kwargs"] = variables | given if isinstance(given, dict) else variables
        text, end = choice.text[: self._boundary], self._thinking_end
        texts = {"answer": "" if self._is_thought else text[choice.answer_at :]}
        if end is not None:
            texts |= {"thought": text[: self._thoughts_end], "end": end, "begin": first_mark(end)}
        asked: dict[str, Body] = {"chat": chat}
        for name, each in texts.items():
            if each:
                asked[name] = {"model": body.get("model"), "prompt": each, "add_special_tokens": False}
        return asked

    def take_tokens(self, told: Mapping[str, "array[int]"]) -> None:
        """The token ids of `to_tokenize`: the answer goes on from them."""
        none = array("I")
        prompt, ids = told["chat"], told.get("answer", none)
        begin, end = told.get("begin", none), told.get("end", none)
        if end:
            near = prompt[-_NEAR:]
            is_open = _last(near, begin) > _last(near, end)
            # The model writes the mark that the template doesn't.
            if self._passed_choice.thought_names:
                thought = (none if is_open else begin) + told.get("thought", none)
                ids = thought if self._is_thought else thought + end + ids
            elif is_open:
                ids = end + ids
            self._answer.mark = end
        self._stream.take_answer(prompt, ids, self._boundary - held_back(self._body))
        self._form = "exact"

    @property
    def form(self) -> Form:
        """Always `text`: the tokens that the first engine had are unknown."""
        return "text"

    def can_ask(self, kind: str) -> bool:
        """Whether an engine of this kind can be asked for the rest."""
        return kind == EXACT_KIND or (self._form == "text" and not self.must_be_tokenized and kind in TEXT_KINDS)

    def open_choices(self) -> list[int]:
        """Indices of the choices that haven't ended: of one."""
        return [] if self._passed_choice.finished or not self._stream.head else [0]

    def pass_rest(self, data: bytes) -> bytes:
        """Take events of the rest; returns them as the client gets them."""
        return self._answer.write_rest(data)

    def end_stream(self, prompt_tokens: int = 0) -> bytes:
        """The last events of a stream whose choice has ended. `prompt_tokens`: as the stages counted them."""
        return self._answer.write_rest(super().usage_due(prompt_tokens)) + self._answer.write_end()

    def usage_due(self, prompt_tokens: int = 0) -> bytes:
        """Empty: the event with the reason of the end has the usage too."""
        del prompt_tokens
        return b""

    def _question(self, index: int, *, longest: int | None, probing: bool = False) -> Question | None:
        if probing and self._form == "text" and self._can_be_tokenized:
            return None
        return super()._question(index, longest=longest, probing=probing)


def _last(ids: "array[int]", mark: "array[int]") -> int:
    """Where the mark comes last; -1: nowhere."""
    length = len(mark)
    places = range(len(ids) - length, -1, -1)
    return next((place for place in places if length and ids[place : place + length] == mark), -1)
