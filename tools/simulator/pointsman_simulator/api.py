"""The requests that an engine takes, as vLLM reads them, and what every answer has in common."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, TypeVar, cast

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from pointsman_simulator.asked_json import Json, arguments, document, forced_call
from pointsman_simulator.tokens import Tokens
from pointsman_simulator.vocabulary import BodyField, Vocabulary

Surface: TypeAlias = Literal["chat", "completions", "responses", "messages"]
PromptInput: TypeAlias = str | list[str] | list[int] | list[list[int]]


_ARGUMENTS: Final = '{"text": "', '"}'
"""Stand around the words of a call whose function has an argument `text`, or no arguments that are described."""


class ApiError(Exception):
    """An error answer: HTTP status and the members of OpenAI's error object."""

    def __init__(
        self, status: int, message: str, kind: str, param: str | None = None, *, before_api: bool = False
    ) -> None:
        """`before_api`: the request fits no API; vLLM then answers with the same words on every path."""
        super().__init__(message)
        self.before_api = before_api
        self.status = status
        self.kind = kind
        self.param = param

    def encode_error(self, path: str = "") -> bytes:
        """As the API at `path` words it."""
        if path == "/v1/messages" and not self.before_api:
            return orjson.dumps({"type": "error", "error": {"type": self.kind, "message": str(self)}})
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    cache_salt: str | None = None

    def field(self, name: str) -> object:
        """A field of the body, as the vocabulary reads it."""
        value: object = getattr(self, name, None)
        return value


class _StreamOptions(BaseModel):
    include_usage: bool | None = False


class _Generation(_Request):
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    # vLLM takes null for the default in these.
    n: int | None = Field(1, ge=1, le=128)
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False
    seed: int | None = None
    return_token_ids: bool | None = False
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
    tool_choice: str | Json | None = None
    response_format: Json | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=20)


class _Response(_Request):
    input: str | list[Json] = Field(min_length=1)
    instructions: str | None = None
    text: Json | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    stream: bool | None = False
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    previous_response_id: str | None = None


class _AnthropicMessages(_Request):
    messages: list[_Message] = Field(min_length=1)
    system: str | list[Json] | None = None
    max_tokens: int = Field(ge=1)
    stream: bool | None = False
    tools: list[Json] | None = None
    tool_choice: Json | None = None


class _Count(_Request):
    messages: list[_Message] = Field(min_length=1)
    system: str | list[Json] | None = None
    tools: list[Json] | None = None


class _Completion(_Generation):
    prompt: PromptInput


class _Embedding(_Request):
    input: PromptInput
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=8192)


R = TypeVar("R", bound=_Request)

_CHAT, _COMPLETION, _EMBEDDING = TypeAdapter(_Chat), TypeAdapter(_Completion), TypeAdapter(_Embedding)
_COUNT: Final = TypeAdapter(_Count)
_RESPONSE, _ANTHROPIC_MESSAGES = TypeAdapter(_Response), TypeAdapter(_AnthropicMessages)


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
    seed: int = 0
    cache_salt: str | None = None
    """Keeps its blocks apart from those of requests with another one."""
    call: str | None = None
    """The function that the answer is a call of; None for text."""
    call_named: bool = False
    """Whether the request names that function."""
    document: str | None = None
    """JSON that follows a schema, in place of words: the answer, or the arguments of the call."""
    returns_ids: bool = False
    """Whether prompt and answer come with their token ids too."""
    logprobs: int | None = None
    """Number of the likeliest tokens reported for each token; None without log probabilities."""
    continues: str | None = None
    """The response whose prompt and answer stand before the prompt."""

    @property
    def surrounding_text(self) -> tuple[str, str]:
        """The text before and after the tokens, so that a call's arguments are JSON."""
        return ("", "") if self.call is None or self.document is not None else _ARGUMENTS


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    model: str
    inputs: list[Tokens]
    base64: bool
    dimensions: int | None


def parse_chat(body: bytes, vocabulary: Vocabulary) -> Generation:
    request = _validated(_CHAT, body)
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    prompt = _chat(vocabulary, messages, request.field)
    limit = request.max_completion_tokens or request.max_tokens
    call = forced_call(request.tools, request.tool_choice)
    return replace(
        _generation("chat", request, [prompt], limit, call),
        call_named=isinstance(request.tool_choice, dict),
        document=arguments(request.tools, call) or document(request.response_format),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
    )


def parse_completion(body: bytes, vocabulary: Vocabulary) -> Generation:
    request = _validated(_COMPLETION, body)
    prompts = _prompts(request.prompt, "prompt", vocabulary, request.field)
    return _generation("completions", request, prompts, request.max_tokens or 16)


def parse_count(body: bytes, vocabulary: Vocabulary) -> Json:
    """`/v1/messages/count_tokens`: the answer."""
    request = _validated(_COUNT, body)
    system = [] if request.system is None else [{"role": "system", "content": request.system}]
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    count = len(_chat(vocabulary, [*system, *messages], request.field))
    return {"input_tokens": count, "context_management": {"original_input_tokens": count}}


def parse_response(body: bytes, vocabulary: Vocabulary) -> Generation:
    """`/v1/responses`."""
    request = _validated(_RESPONSE, body)
    items = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    system = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
    prompt = _chat(vocabulary, [*system, *items], request.field)
    call = forced_call(request.tools, request.tool_choice)
    form = (request.text or {}).get("format")
    said = arguments(request.tools, call) or document(cast("Json", form) if isinstance(form, dict) else None)
    asked = _one_choice(
        surface="responses",
        model=request.model,
        prompt=prompt,
        limit=request.max_output_tokens,
        stream=bool(request.stream),
        call=call,
    )
    return replace(asked, document=said, continues=request.previous_response_id)


def parse_messages(body: bytes, vocabulary: Vocabulary) -> Generation:
    """`/v1/messages`, Anthropic's API."""
    request = _validated(_ANTHROPIC_MESSAGES, body)
    system = [] if request.system is None else [{"role": "system", "content": request.system}]
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    prompt = _chat(vocabulary, [*system, *messages], request.field)
    call = forced_call(request.tools, request.tool_choice)
    asked = _one_choice(
        surface="messages",
        model=request.model,
        prompt=prompt,
        limit=request.max_tokens,
        stream=bool(request.stream),
        call=call,
    )
    return replace(asked, document=arguments(request.tools, call))


def parse_embedding(body: bytes, vocabulary: Vocabulary) -> EmbeddingRequest:
    request = _validated(_EMBEDDING, body)
    inputs = _prompts(request.input, "input", vocabulary, request.field)
    return EmbeddingRequest(request.model, inputs, request.encoding_format == "base64", request.dimensions)


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    created_tokens: int = 0
    """Prompt tokens in blocks that the cache newly has."""

    def body(self, *, chat: bool) -> Json:
        details: Json = {"cached_tokens": self.cached_tokens}
        if chat:
            details["created_cache_tokens"] = self.created_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": details,
        }


def model_list(models: tuple[str, ...], loras: tuple[str, ...], max_model_len: int) -> Json:
    """Base models, at least one, and the adapters of the first."""
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

    cards = [*(card(name, None) for name in models), *(card(name, models[0]) for name in loras)]
    return {"object": "list", "data": cards}


def _generation(
    surface: Surface, request: _Generation, prompts: list[Tokens], limit: int | None, call: str | None = None
) -> Generation:
    options = request.stream_options
    return Generation(
        surface=surface,
        model=request.model,
        prompts=prompts,
        max_tokens=limit,
        min_tokens=limit if request.ignore_eos and limit else request.min_tokens,
        choices_per_prompt=request.n or 1,
        stream=bool(request.stream),
        include_usage=options is not None and bool(options.include_usage),
        seed=request.seed or 0,
        cache_salt=request.cache_salt,
        call=call,
        returns_ids=bool(request.return_token_ids),
    )


def _one_choice(
    surface: Surface, model: str, prompt: Tokens, limit: int | None, stream: bool, call: str | None
) -> Generation:
    return Generation(
        surface=surface,
        model=model,
        prompts=[prompt],
        max_tokens=limit,
        min_tokens=0,
        choices_per_prompt=1,
        stream=stream,
        include_usage=True,
        call=call,
    )


def _chat(vocabulary: Vocabulary, messages: Sequence[Mapping[str, object]], field: BodyField) -> Tokens:
    try:
        return vocabulary.tokenize_chat(lambda name: messages if name == "messages" else field(name))
    except ValueError as error:
        raise ApiError(400, str(error), "BadRequestError") from None


def _prompts(value: PromptInput, param: str, vocabulary: Vocabulary, field: BodyField) -> list[Tokens]:
    try:
        prompts = list(_each_prompt(value, vocabulary, field))
    except ValueError as error:
        raise ApiError(400, str(error), "BadRequestError") from None
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise ApiError(400, f"{param} is empty; it must hold at least one token", "BadRequestError", param)
    return prompts


def _each_prompt(value: PromptInput, vocabulary: Vocabulary, field: BodyField) -> Iterator[Tokens]:
    if isinstance(value, str):
        yield vocabulary.tokenize_text(value, field)
        return
    ids: list[int] = []
    for item in value:
        if isinstance(item, int):
            ids.append(item)
        else:
            yield from _each_prompt(item, vocabulary, field)
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
        # vLLM's framework reports missing fields, its API wrong ones.
        missing = first["type"] == "missing"
        kind = "Bad Request" if missing else "BadRequestError"
        raise ApiError(400, message, kind, where or None, before_api=missing) from None
