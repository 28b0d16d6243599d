"""Answers on `/v1/chat/completions` and `/v1/completions`."""

import time

import orjson

from pointsman_simulator.api import AnswerUsage, Generation
from pointsman_simulator.asked_json import Json

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "simulated"
_UNFINISHED: Json = {"logprobs": None, "finish_reason": None}


class ChoiceShape:
    """OpenAI's answers with choices."""

    def __init__(self, request: Generation, answer_id: str, ids: list[list[int]] | None = None) -> None:
        """`ids`: the tokens of each choice, where the request asks for them."""
        self._surface = request.surface
        self._model = request.model
        self._call = request.call
        self._named = request.call_named
        self._before, self._after = request.surrounding_text
        self._escaped = request.document is not None
        self._logprobs = request.logprobs
        self._include_usage = request.include_usage
        self._ids = ids
        self._sent = [0] * len(ids or ())
        self._prompts: list[list[int]] = [] if ids is None else [prompt.tolist() for prompt in request.prompts]
        self._created = int(time.time())
        self._answer_id = answer_id
        self._id = ("chatcmpl-" if request.surface == "chat" else "cmpl-") + answer_id
        self._deltas: dict[int, tuple[bytes, bytes]] = {}

    def write_opening(self, index: int) -> bytes:
        """The first event of a choice; completions have none."""
        if self._surface == "completions":
            return b""
        delta: Json = {"role": "assistant", "content": "" if self._call is None else None}
        if self._call is not None:
            delta["tool_calls"] = [{"index": 0} | self._tool_call(index, self._before)]
        return self._event([{"index": index, "delta": delta} | _UNFINISHED], told=self._prompt_ids())

    def write_tokens(self, index: int, words: list[str]) -> bytes:
        """One event per token."""
        if self._ids is not None:
            return b"".join([self._token_with_id(index, word) for word in words])
        head, tail = self._deltas.get(index) or self._delta_frame(index)
        if self._escaped:
            return b"".join(head + orjson.dumps(word)[1:-1] + tail for word in words)
        return b"".join(head + word.encode() + tail for word in words)

    def write_closing(self, index: int, reason: str) -> bytes:
        """The event with the finish reason."""
        choice: Json = {"index": index, "logprobs": None, "finish_reason": self._finish(reason), "stop_reason": None}
        last: Json = {"delta": {}} if self._surface == "chat" and self._call is None else self._piece(self._after)
        return self._event([choice | last])

    def end_stream(self, usage: AnswerUsage) -> bytes:
        """Usage where it was asked for, and the mark."""
        return (
            self._event([], usage.body(chat=self._surface == "chat"), last=True) if self._include_usage else b""
        ) + DONE

    def build_body(self, answers: list[tuple[str, str]], usage: AnswerUsage) -> bytes:
        choices = [self._choice(index, text, reason) for index, (text, reason) in enumerate(answers)]
        kind = "chat.completion" if self._surface == "chat" else "text_completion"
        told: Json = {
            **(self._prompt_ids() if self._surface == "chat" else {}),
            "choices": choices,
            "usage": usage.body(chat=self._surface == "chat"),
            "system_fingerprint": FINGERPRINT,
        }
        return orjson.dumps(self._head(kind) | told)

    def _choice(self, index: int, text: str, reason: str) -> Json:
        choice: Json = {"index": index, "logprobs": None, "finish_reason": self._finish(reason), "stop_reason": None}
        if self._ids is not None:
            choice["token_ids"] = self._ids[index]
        if self._surface == "completions":
            return choice | {"text": text} | self._prompt_ids()
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        if self._logprobs is not None:
            choice["logprobs"] = {"content": [_told(word, self._logprobs) for word in _words(text)]}
        if self._call is not None:
            arguments = self._before + text + self._after
            message |= {"content": "", "tool_calls": [self._tool_call(index, arguments)]}
        return choice | {"message": message}

    def _finish(self, reason: str) -> str:
        # As OpenAI: a call that the request named is no choice of the model's.
        return "tool_calls" if self._call is not None and reason == "stop" and not self._named else reason

    def _tool_call(self, index: int, arguments: str) -> Json:
        function = {"name": self._call, "arguments": arguments}
        return {"id": f"call_{self._answer_id}_{index}", "type": "function", "function": function}

    def _piece(self, text: str) -> Json:
        if self._surface == "completions":
            return {"text": text}
        if self._call is None:
            return {"delta": {"content": text}}
        return {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}

    def _delta_frame(self, index: int) -> tuple[bytes, bytes]:
        head, _, tail = self._event([{"index": index} | self._piece("\x00") | _UNFINISHED]).partition(b"\\u0000")
        self._deltas[index] = (head, tail)
        return head, tail

    def _prompt_ids(self) -> Json:
        return {"prompt_token_ids": self._prompts[0]} if self._prompts else {}

    def _token_with_id(self, index: int, word: str) -> bytes:
        sent = self._sent[index]
        self._sent[index] = sent + 1
        choice = {"index": index} | self._piece(word) | _UNFINISHED
        choice["token_ids"] = [] if self._ids is None else self._ids[index][sent : sent + 1]
        if self._surface == "completions" and not sent:
            choice |= self._prompt_ids()
        return self._event([choice])

    def _event(
        self, choices: list[Json], usage: Json | None = None, *, last: bool = False, told: Json | None = None
    ) -> bytes:
        kind = "chat.completion.chunk" if self._surface == "chat" else "text_completion"
        body = self._head(kind) | (told or {}) | {"choices": choices}
        if usage is not None:
            body["usage"] = usage
        if last:
            body["system_fingerprint"] = FINGERPRINT
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def _words(text: str) -> list[str]:
    """The tokens of an answer: each begins with a space."""
    return [f" {word}" for word in text.split(" ")[1:]]


def _told(word: str, likeliest: int) -> Json:
    token: Json = {"token": word, "logprob": -0.5, "bytes": list(word.encode())}
    return token | {"top_logprobs": [token] * likeliest}
