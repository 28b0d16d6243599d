"""An engine in this process whose every token follows from those before it: it writes the streams of vLLM's chats and
completions, and continues an answer from token ids or from its text.

Whichever engine of this kind goes on, and wherever it does, the answer is the same. A token that is lost, doubled or
other than it was changes all that follow.
"""

import codecs
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

WORDS: Final = (
    " the", " of", "ST", "OP", "é", " naïve", "日本", "\n\n", " ", "data: ", '"', "\\", "}", "[DONE]", " a", "b",
    '{"x":', "  ", "ß", " Zug",
)  # fmt: skip
_FIRST_WORD: Final = 256
"""Ids below are single bytes."""
END: Final = 400
THOUGHT: Final = 401
"""The token behind thoughts."""
THINKING_END: Final = "</think>"
_FACES: Final = tuple("😀🙃🚂".encode()[place : place + 4] for place in (0, 4, 8))
_FACE: Final = 300
"""Ids from here on are the first half of a face, of which bytes follow."""
_CHOICES: Final = 5
Body = dict[str, Any]


def bytes_of(token: int) -> bytes:
    """The bytes that a token stands for."""
    if token < _FIRST_WORD:
        return bytes((token,))
    if token == END:
        return b""
    if token == THOUGHT:
        return THINKING_END.encode()
    return _FACES[token - _FACE][:2] if token >= _FACE else WORDS[token - _FIRST_WORD].encode()


def tokens_of(text: bytes) -> list[int]:
    """The tokens that a text is cut into: the longest one that fits, from left to right."""
    found: list[int] = []
    while text:
        found.append(_longest(text))
        text = text[len(bytes_of(found[-1])) :]
    return found


def _longest(text: bytes) -> int:
    return next(_TOKENS[text[:length]] for length in range(_LONGEST, 0, -1) if text[:length] in _TOKENS)


def _is_cut_between(before: list[int], token: int) -> bool:
    """Whether a text is cut between these tokens and this one, and this one comes out of it."""
    new = bytes_of(token)
    if _longest(new) != token:
        return False
    behind = b""
    for earlier in reversed(before):
        behind = bytes_of(earlier) + behind
        if len(bytes_of(_longest(behind + new))) > len(behind):
            return False
    return True


def rendered(messages: list[Body], *, goes_on: bool, thinks: bool = False) -> bytes:
    """A chat template."""
    if thinks:
        return rendered(messages, goes_on=goes_on) + b"<think>"
    turns = [f"<{turn['role']}>{turn['content']}".encode() for turn in messages]
    return b"</>".join(turns) if goes_on else b"</>".join((*turns, b"<assistant>"))


def thinks(body: Body) -> bool:
    """Whether a chat asks for thoughts: the model thinks, and the engine splits the thoughts off."""
    variables: Body = body.get("chat_template_kwargs") or {}
    return bool(variables.get("enable_thinking"))


_TOKENS: Final = {bytes_of(token): token for token in (*range(_FIRST_WORD + len(WORDS)), _FACE, THOUGHT)}
_LONGEST: Final = max(map(len, _TOKENS))
_PLAIN: Final = _FIRST_WORD + WORDS.index("b")
"""A token that no other one begins with or goes on."""
_NEAR: Final = 8
"""Tokens in which the cuts of a text depend on each other, at most."""


class _Token(NamedTuple):
    id: int
    logprob: float


@dataclass(frozen=True)
class ContinuingEngine:
    """`stream(path, body)` is the whole stream of an answer."""

    together: int = 3
    """Tokens that come in one event, at most."""
    tells_ids: bool = True
    """It knows `return_token_ids`."""
    model: str = "m"
    answer_id: str = "1"
    repeats: bool = False
    """It writes the text of its prompt before the rest."""
    counts_all: bool = False
    """It counts the tokens of an answer that it was given as its own."""
    faults: frozenset[str] = field(default_factory=frozenset[str])
    """`other_prompt`, `error`, `abort`."""
    salt: str = ""
    """Engines with another salt bring other tokens."""
    cuts_alike: bool = False
    """Its tokens are those that `tokens_of` cuts their text into."""

    def stream(self, path: str, body: Body) -> bytes:
        """The events of an answer."""
        return b"".join(self.events(path, body))

    def events(self, path: str, body: Body) -> Iterator[bytes]:
        """The events of an answer, one by one."""
        chat = path.endswith("chat/completions")
        prompts = [self._prompt(body)] if chat else self._prompts(body)
        n = body.get("n") or 1
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{self.answer_id}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 7,
            "model": self.model,
        }
        asks_ids = bool(body.get("return_token_ids")) and self.tells_ids
        given = len(body["messages"][-1]["content"]) // 3 if chat and body.get("continue_final_message") else 0
        writers = [
            _Choice(self, body, chat, index, prompts[index // n], asks_ids=asks_ids)
            for index in range(n * len(prompts))
        ]
        if chat:
            for writer in writers:
                event: Body = head | {
                    "choices": [
                        {
                            "index": writer.index,
                            "delta": {"role": "assistant", "content": ""},
                            "logprobs": None,
                            "finish_reason": None,
                        }
                    ],
                    "prompt_token_ids": list(prompts[0]) if asks_ids else None,
                }
                yield _event(event)
        turn = 0
        options: Body = body.get("stream_options") or {}
        while any(not writer.finished for writer in writers):
            for writer in writers:
                # Choices don't go in step.
                if writer.finished or (len(writers) > 1 and zlib.crc32(b"%d/%d" % (turn, writer.index)) % 3 == 0):
                    continue
                for choice in writer.step():
                    event = head | {"choices": [choice]}
                    if options.get("continuous_usage_stats"):
                        event["usage"] = _usage(len(writer.prompt), len(writer.ids))
                    yield _event(event)
            turn += 1
        if "abort" in self.faults or "error" in self.faults:
            return
        if options.get("include_usage"):
            completed = sum(len(writer.ids) for writer in writers) + (given if self.counts_all else 0)
            yield _event(head | {"choices": [], "usage": _usage(sum(map(len, prompts)), completed)})
        yield b"data: [DONE]\n\n"

    def _prompt(self, body: Body) -> bytes:
        goes_on = bool(body.get("continue_final_message")) and not body.get("add_generation_prompt", True)
        # As templates do that trim what a message ends with.
        messages = body["messages"]
        if goes_on:
            messages = [*messages[:-1], messages[-1] | {"content": messages[-1]["content"].rstrip()}]
        return rendered(messages, goes_on=goes_on, thinks=thinks(body))

    def _prompts(self, body: Body) -> "list[bytes | list[int]]":
        prompt = body["prompt"]
        if isinstance(prompt, str):
            return [prompt.encode()]
        if isinstance(prompt[0], int):
            return [prompt]
        return [each.encode() if isinstance(each, str) else each for each in prompt]


class _Choice:
    """Generates one choice."""

    def __init__(
        self,
        engine: ContinuingEngine,
        body: Body,
        chat: bool,
        index: int,
        prompt: "bytes | list[int]",
        *,
        asks_ids: bool,
    ) -> None:
        self.engine = engine
        self.body = body
        self.chat = chat
        self.index = index
        self.prompt = list(prompt)
        self.asks_ids = asks_ids
        self.ids: list[int] = []
        self.finished = False
        self._known = b"".join(map(bytes_of, self.prompt))
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        # The tokenizer of vLLM goes on with all of a prompt that ends within a character.
        try:
            self._known.decode()
        except UnicodeDecodeError:
            self._decoder.decode(self._known)
            self._begun = self._known.decode(errors="ignore")
        else:
            self._begun = ""
        self._text = ""
        self._thinks = chat and thinks(body)
        """The thoughts aren't part of the text that is sent."""
        self._sent = 0
        self._offset = 0
        stop: str | list[str] = body.get("stop") or []
        self._stops = [stop] if isinstance(stop, str) else stop
        self._held_back = max(map(len, self._stops), default=1) - 1
        if body.get("include_stop_str_in_output"):
            self._held_back = 0
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        self._limit = limit if limit is not None else (4096 if chat else 16)
        self._told_prompt = False
        self._echo = bool(body.get("echo"))
        if engine.repeats:
            self._text = self._known.decode(errors="ignore").rpartition("<assistant>")[2]

    def step(self) -> list[Body]:
        """The next event."""
        tokens: list[_Token] = []
        reason: str | None = None
        stopped: str | None = None
        wanted = 1 + zlib.crc32(b"t%d" % len(self.ids)) % self.engine.together
        while len(tokens) < wanted and reason is None:
            token = self._next()
            self.ids.append(token.id)
            tokens.append(token)
            self._known += bytes_of(token.id)
            decoded = self._decoder.decode(bytes_of(token.id))
            if decoded and self._begun:
                decoded, self._begun = self._begun + decoded, ""
            self._text += decoded
            if token.id == END:
                reason = "stop"
            elif (found := self._stop(decoded)) is not None:
                reason, stopped = "stop", found
            elif len(self.ids) >= self._limit:
                reason = "length"
            if "abort" in self.engine.faults and len(self.ids) > 4:
                reason = "abort"
        if "error" in self.engine.faults and len(self.ids) > 4:
            self.finished = True
            return [{"index": 0, "finish_reason": None, "error": {"message": "x", "code": 500}}]
        self.finished = reason is not None
        until = len(self._text) if self.finished else max(self._sent, len(self._text) - self._held_back)
        text, self._sent = self._text[self._sent : until], until
        return [self._written(text, tokens, reason, stopped)]

    def _next(self) -> _Token:
        recent = self._known[-3:]
        for face in _FACES:
            for length in (2, 3):
                if recent[-length:] == face[:length]:
                    return _Token(face[length], -0.5)
        seed = zlib.crc32(self._known + str(self.body.get("seed")).encode() + self.engine.salt.encode())
        if seed % 19 == 0 and self._known.rfind(b"<think>") > self._known.rfind(THINKING_END.encode()):
            return _Token(THOUGHT, -0.2)
        if seed % 67 == 0 and len(self.ids) >= (self.body.get("min_tokens") or 0) and not self.body.get("ignore_eos"):
            return _Token(END, -0.1)
        found = sorted(self._candidates(seed), key=self._score, reverse=True)
        if not self.engine.cuts_alike:
            return found[0]
        recent = [*self.prompt, *self.ids][-_NEAR:]
        fitting = (each for each in found if _is_cut_between(recent, each.id))
        return next(fitting, _Token(_PLAIN, -1.0))

    def _candidates(self, seed: int) -> list[_Token]:
        numbers = [zlib.crc32(b"%d-%d" % (seed, place)) for place in range(_CHOICES)]
        return [
            _Token(
                _FACE + number % len(_FACES) if number % 11 == 0 else _FIRST_WORD + number % len(WORDS),
                -(number % 97) / 10,
            )
            for number in numbers
        ]

    def _score(self, token: _Token) -> float:
        count = self.ids.count(token.id)
        penalty = (self.body.get("frequency_penalty") or 0.0) * count
        penalty += (self.body.get("presence_penalty") or 0.0) * (count > 0)
        biases: dict[str, float] = self.body.get("logit_bias") or {}
        return token.logprob - penalty + biases.get(str(token.id), 0.0)

    def _stop(self, new: str) -> str | None:
        if len(self.ids) <= (self.body.get("min_tokens") or 0):
            return None
        for stop in self._stops:
            at = self._text.find(stop, max(0, len(self._text) - len(new) - len(stop) + 1))
            if at >= 0:
                self._text = self._text[: at + len(stop) * bool(self.body.get("include_stop_str_in_output"))]
                return stop
        return None

    def _written(self, text: str, tokens: list[_Token], reason: str | None, stopped: str | None) -> Body:
        choice: Body = {"index": self.index}
        if self._thinks:
            choice["delta"] = self._split(text)
        elif self.chat:
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
            if self._echo and not self._told_prompt and not self.asks_ids:
                choice["text"] = b"".join(map(bytes_of, self.prompt)).decode() + text
        choice["logprobs"] = self._logprobs(tokens)
        choice["finish_reason"] = reason
        if reason is not None:
            choice["stop_reason"] = stopped
        if not self.chat:
            ids = self.prompt[1:] if "other_prompt" in self.engine.faults else self.prompt
            choice["prompt_token_ids"] = ids if self.asks_ids and not self._told_prompt else None
        self._told_prompt = True
        choice["token_ids"] = [token.id for token in tokens] if self.asks_ids else None
        return choice

    def _split(self, text: str) -> Body:
        """As engines do that look for the mark."""
        at, sent = self._text.find(THINKING_END), self._sent
        before = sent - len(text)
        if at < 0:
            return {"reasoning": text} if text else {}
        thought = text[: max(0, at - before)]
        answer = text[max(0, at + len(THINKING_END) - before) :]
        return ({"reasoning": thought} if thought else {}) | ({"content": answer} if answer or not thought else {})

    def _logprobs(self, tokens: list[_Token]) -> Body | None:
        asked = self.body.get("logprobs")
        if asked is None or asked is False:
            return None
        many = self.body.get("top_logprobs") or 0 if self.chat else asked
        spelt = [(bytes_of(token.id).decode(errors="replace"), token.logprob) for token in tokens]
        tops = [[(name, logprob), ("x", -9.0), ("y", -9.5)][: max(1, many)] for name, logprob in spelt]
        if self.chat:
            return {
                "content": [
                    _spelt(name, logprob) | {"top_logprobs": [_spelt(*each) for each in top[:many]] if many else []}
                    for (name, logprob), top in zip(spelt, tops, strict=True)
                ]
            }
        offsets: list[int] = []
        for name, _ in spelt:
            offsets.append(self._offset)
            self._offset += len(name)
        return {
            "text_offset": offsets,
            "token_logprobs": [logprob for _, logprob in spelt],
            "tokens": [name for name, _ in spelt],
            "top_logprobs": [dict(top) for top in tops],
        }


def _spelt(name: str, logprob: float) -> Body:
    return {"token": name, "logprob": logprob, "bytes": list(name.encode())}


def _usage(prompt: int, completion: int) -> Body:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _event(document: Body) -> bytes:
    return b"data: %b\n\n" % json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
