"""The OpenAI-compatible request and answer shapes, as vLLM reads and writes them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from pointsman_simulator.tokens import Tokens, render_chat, tokenize

Surface: TypeAlias = Literal["chat", "completions"]
Json: TypeAlias = dict[str, object]
PromptInput: TypeAlias = str | list[str] | list[int] | list[list[int]]


class ApiError(Exception):
    """An error answer: HTTP status and the members of OpenAI's error object."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    model: str


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Generation(_Request):
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False
    seed: int | None = None
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> "_Generation":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options can only be set when stream is true")
        return self


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[Json] | None = None


class _Chat(_Generation):
    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: list[Json] | None = None


class _Completion(_Generation):
    prompt: PromptInput


class _Embedding(_Request):
    input: PromptInput
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=8192)


R = TypeVar("R", bound=_Request)

_CHAT, _COMPLETION, _EMBEDDING = TypeAdapter(_Chat), TypeAdapter(_Completion), TypeAdapter(_Embedding)


@dataclass(frozen=True, slots=True)
class Generation:
    surface: Surface
    model: str
    prompts: list[Tokens]
    max_tokens: int | None
    """Upper bound of output tokens per choice; None leaves it to the context length."""
    min_tokens: int
    choices_per_prompt: int
    stream: bool
    include_usage: bool
    seed: int


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    model: str
    inputs: list[Tokens]
    base64: bool
    dimensions: int | None


def parse_chat(body: bytes) -> Generation:
    request = _validated(_CHAT, body)
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    limit = request.max_completion_tokens or request.max_tokens
    return _generation("chat", request, [render_chat(messages, request.tools)], limit)


def parse_completion(body: bytes) -> Generation:
    request = _validated(_COMPLETION, body)
    return _generation("completions", request, _prompts(request.prompt, "prompt"), request.max_tokens or 16)


def parse_embedding(body: bytes) -> EmbeddingRequest:
    request = _validated(_EMBEDDING, body)
    inputs = _prompts(request.input, "input")
    return EmbeddingRequest(request.model, inputs, request.encoding_format == "base64", request.dimensions)


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def body(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class AnswerShape:
    """Writes the bodies and stream events of one answer."""

    def __init__(self, request: Generation, answer_id: str) -> None:
        self._surface = request.surface
        self._model = request.model
        self._created = int(time.time())
        self._id = ("chatcmpl-" if request.surface == "chat" else "cmpl-") + answer_id
        self._deltas: dict[int, tuple[bytes, bytes]] = {}

    def opening(self, index: int) -> bytes:
        """The first event of a choice; completions have none."""
        if self._surface == "completions":
            return b""
        return self._event([{"index": index, "delta": {"role": "assistant", "content": ""}} | _UNFINISHED])

    def tokens(self, index: int, words: list[str]) -> bytes:
        """One event per token. Words need no escaping."""
        head, tail = self._deltas.get(index) or self._delta_frame(index)
        return b"".join(head + word.encode() + tail for word in words)

    def closing(self, index: int, reason: str) -> bytes:
        choice = {"index": index, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        content: Json = {"delta": {"content": ""}} if self._surface == "chat" else {"text": ""}
        return self._event([choice | content])

    def usage(self, usage: Usage) -> bytes:
        return self._event([], usage.body())

    def whole(self, answers: list[tuple[str, str]], usage: Usage) -> bytes:
        """The body of an answer that is not streamed, from (text, finish reason) of each choice."""
        choices = [self._choice(index, text, reason) for index, (text, reason) in enumerate(answers)]
        kind = "chat.completion" if self._surface == "chat" else "text_completion"
        return orjson.dumps(self._head(kind) | {"choices": choices, "usage": usage.body()})

    def _choice(self, index: int, text: str, reason: str) -> Json:
        choice: Json = {"index": index, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        if self._surface == "completions":
            return choice | {"text": text}
        message: Json = {"role": "assistant", "content": text, "refusal": None}
        return choice | {"message": message}

    def _delta_frame(self, index: int) -> tuple[bytes, bytes]:
        mark = "\x00"
        content: Json = {"delta": {"content": mark}} if self._surface == "chat" else {"text": mark}
        head, _, tail = self._event([{"index": index} | content | _UNFINISHED]).partition(b"\\u0000")
        self._deltas[index] = (head, tail)
        return head, tail

    def _event(self, choices: list[Json], usage: Json | None = None) -> bytes:
        kind = "chat.completion.chunk" if self._surface == "chat" else "text_completion"
        body = self._head(kind) | {"choices": choices}
        if usage is not None:
            body["usage"] = usage
        return b"data: " + orjson.dumps(body) + b"\n\n"

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


DONE = b"data: [DONE]\n\n"
_UNFINISHED: Json = {"logprobs": None, "finish_reason": None}


def model_list(base: str, loras: list[str], max_model_len: int) -> Json:
    created = int(time.time())

    def card(name: str, parent: str | None) -> Json:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": None if parent else max_model_len,
        }

    cards = [card(base, None), *(card(name, base) for name in loras)]
    return {"object": "list", "data": cards}


def _generation(surface: Surface, request: _Generation, prompts: list[Tokens], limit: int | None) -> Generation:
    options = request.stream_options
    return Generation(
        surface=surface,
        model=request.model,
        prompts=prompts,
        max_tokens=limit,
        min_tokens=limit if request.ignore_eos and limit else request.min_tokens,
        choices_per_prompt=request.n,
        stream=request.stream,
        include_usage=options is not None and options.include_usage,
        seed=request.seed or 0,
    )


def _prompts(value: PromptInput, param: str) -> list[Tokens]:
    prompts = list(_each_prompt(value))
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise ApiError(400, f"{param} is empty; it holds at least one token", "BadRequestError", param)
    return prompts


def _each_prompt(value: PromptInput) -> Iterator[Tokens]:
    if isinstance(value, str):
        yield tokenize(value)
        return
    ids: list[int] = []
    for item in value:
        if isinstance(item, int):
            ids.append(item)
        else:
            yield from _each_prompt(item)
    if ids:
        yield np.array(ids, dtype=np.int64).astype("<u4")


def _validated(adapter: TypeAdapter[R], body: bytes) -> R:
    try:
        return adapter.validate_python(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}", "BadRequestError") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise ApiError(400, message, "BadRequestError", where or None) from None
