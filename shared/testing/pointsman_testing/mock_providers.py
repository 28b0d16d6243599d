"""External providers on real ports, written from the formats that they publish. Each checks its credential, and holds
every request against its maker's own schema and rules."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from pointsman_providers.kinds import KINDS
from pointsman_testing.makers import load, problems
from pointsman_testing.provider_messages import aws_message

WORDS: Final = ("Hello", " from", " far")
"""The words of every answer; each is an event of a stream."""
AWS_KEYS: Final = ("AKIAMOCK", "canary-aws-secret")
"""Access key and secret that a mock of Bedrock accepts."""


@dataclass
class Asked:
    """One request as it arrived."""

    path: str
    """With its query."""
    headers: dict[str, str]
    """Lower-case names."""
    body: dict[str, Any]


@dataclass
class MockProvider:
    """`async with MockProvider("anthropic") as far:` listens. Its behaviour can be changed while it runs."""

    kind: str
    """See `kind` in the configuration."""
    key: str = "canary-key"
    """The secret that it accepts."""
    limited: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """Further secrets (of kinds that take them as bearers), whose limit is reached, with the headers of their 429."""
    status: int = 200
    """Another one is answered with an error of this kind of provider."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Further headers of every answer."""
    breaks: Literal["", "before", "within"] = ""
    """Whether streams end with an error before their first content, or break off within it."""
    lenient: bool = False
    """Takes what the maker's own schema and rules don't have, as many services with OpenAI's API do."""
    refuses: Callable[[dict[str, Any]], object] = lambda _: None
    """The error document for a body that it answers with 422; None for others."""
    refused: list[str] = field(default_factory=list[str])
    """The faults of the requests that it refused."""
    asked: list[Asked] = field(default_factory=list[Asked])
    port: int = 0

    def __post_init__(self) -> None:
        self._runner: web.AppRunner | None = None
        self._open = asyncio.Event()
        self._open.set()
        self.gone = asyncio.Event()
        """Set when a client hung up within a stream."""

    @property
    def url(self) -> str:
        """Base URL for the configuration."""
        return f"http://127.0.0.1:{self.port}" + ("/v1" if self.kind == "openai" else "")

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(load, self.kind)
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._open.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def hold(self) -> None:
        """Stop streams after their first words."""
        self._open.clear()

    def release(self) -> None:
        """Go on with streams that `hold` stopped."""
        self._open.set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        document = await request.json()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(Asked(request.raw_path, headers, document))
        limit = self.limited.get(headers.get("authorization", "").removeprefix("Bearer "))
        if limit is not None:
            return web.json_response({"error": {"message": "Rate limit reached"}}, status=429, headers=limit)
        if not self._is_known(request, await request.read()):
            return web.json_response({"error": {"message": f"Bad key {self.key}"}}, status=401)
        wrong = [] if self.lenient else problems(self.kind, request.raw_path, headers, document)
        if wrong:
            self.refused += wrong
            message = "; ".join(wrong)
            return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=400)
        error = self.refuses(document)
        if error is not None:
            return web.json_response(error, status=422)
        if self.status != 200:
            return web.json_response(
                _ERRORS.get(self.kind, _ERRORS["openai"]), status=self.status, headers=self.headers
            )
        match request.path:
            case "/v1/messages":
                write = self._message_stream if document.get("stream") else None
                whole = _message(document["model"])
            case path if path.startswith("/model/"):
                write = self._converse_stream if path.endswith("/converse-stream") else None
                whole = _converse()
            case path if path.endswith("/responses"):
                write = self._response_stream if document.get("stream") else None
                whole = _response(document.get("model"))
            case path if path.endswith("/embeddings"):
                write, whole = None, _embeddings(document.get("model"))
            case path if path.endswith("/chat/completions"):
                write = self._chat_stream if document.get("stream") else None
                whole = _chat(document.get("model"))
            case _:
                return web.json_response({"error": {"message": "no such path"}}, status=404)
        if write is None:
            return web.json_response(whole, headers=self.headers)
        kind = "application/vnd.amazon.eventstream" if self.kind == "bedrock" else "text/event-stream"
        response = web.StreamResponse(headers={"content-type": kind, **self.headers})
        await response.prepare(request)
        try:
            await write(response.write, document)
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise
        return response

    async def _say(self, write: Callable[[bytes], Awaitable[None]], words: list[bytes], last: bytes) -> None:
        for word in words:
            for cut in (word[: len(word) // 2], word[len(word) // 2 :]):
                await write(cut)
            if self.breaks == "within":
                raise ConnectionResetError
            while not self._open.is_set():
                await write(b"")  # raises once the client is gone
                await asyncio.sleep(0.02)
        await write(last)

    async def _chat_stream(self, write: Callable[[bytes], Awaitable[None]], document: dict[str, Any]) -> None:
        if self.breaks == "before":
            await write(b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n')
            return
        model = document.get("model")
        words = [_event(_chunk(model, {"content": word})) for word in WORDS]
        last = _event(_chunk(model, {}, "stop"))
        if document.get("stream_options") == {"include_usage": True}:
            last += _event({**_chunk(model, {}), "choices": [], "usage": _USAGE})
        await self._say(write, words, last + b"data: [DONE]\n\n")

    async def _response_stream(self, write: Callable[[bytes], Awaitable[None]], document: dict[str, Any]) -> None:
        response = _response(document.get("model"))
        words = [_named({"type": "response.output_text.delta", "delta": word, "output_index": 0}) for word in WORDS]
        await write(_named({"type": "response.created", "response": {**response, "output": []}}))
        await self._say(write, words, _named({"type": "response.completed", "response": response}))

    async def _message_stream(self, write: Callable[[bytes], Awaitable[None]], document: dict[str, Any]) -> None:
        message: dict[str, Any] = {**_message(document["model"]), "content": [], "stop_reason": None}
        begin = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        await write(_named({"type": "message_start", "message": message}) + _named(begin))
        if self.breaks == "before":
            await write(_named({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}))
            return
        deltas = [{"type": "text_delta", "text": word} for word in WORDS]
        words = [_named({"type": "content_block_delta", "index": 0, "delta": delta}) for delta in deltas]
        end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}}
        last = _named({"type": "content_block_stop", "index": 0}) + _named(end) + _named({"type": "message_stop"})
        await self._say(write, words, last)

    async def _converse_stream(self, write: Callable[[bytes], Awaitable[None]], document: dict[str, Any]) -> None:
        del document
        await write(aws_message("messageStart", {"role": "assistant"}))
        if self.breaks == "before":
            await write(aws_message("throttlingException", {"message": "Too many"}, exception=True))
            return
        words = [aws_message("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": word}}) for word in WORDS]
        usage: dict[str, Any] = {"inputTokens": 5, "outputTokens": 3, "totalTokens": 8}
        last = aws_message("contentBlockStop", {"contentBlockIndex": 0})
        last += aws_message("messageStop", {"stopReason": "end_turn"}) + aws_message("metadata", {"usage": usage})
        await self._say(write, words, last)

    def _is_known(self, request: web.Request, body: bytes) -> bool:
        headers = request.headers
        if self.kind == "bedrock" and headers.get("authorization", "").startswith("AWS4"):
            return _is_signed(f"http://127.0.0.1:{self.port}{request.raw_path}", headers, body)
        if self.kind == "anthropic" and "anthropic-version" not in headers:
            return False
        name, value = KINDS[self.kind].header(self.key)
        return headers.get(name) == value


def _is_signed(url: str, headers: Any, body: bytes) -> bool:
    """Whether the signature matches the secret and the received request."""
    told = str(headers["authorization"])
    signed = told.split("SignedHeaders=")[1].split(",", maxsplit=1)[0].split(";")
    request: Any = AWSRequest(
        "POST", url, data=body, headers={name: headers[name] for name in signed if name != "host"}
    )
    request.context["timestamp"] = headers["x-amz-date"]
    auth: Any = SigV4Auth(Credentials(*AWS_KEYS), "bedrock", "eu-north-1")
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return told.endswith(f"Signature={auth.signature(text, request)}")


_USAGE: Final = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
_ERRORS: Final[dict[str, object]] = {
    "openai": {"error": {"message": "Words of the provider.", "type": "t", "param": None, "code": "c"}},
    "azure": {"error": {"message": "Words of the provider.", "code": "c"}},
    "anthropic": {"type": "error", "error": {"type": "invalid_request_error", "message": "Words of the provider."}},
    "bedrock": {"message": "Words of the provider."},
    "vertex": [{"error": {"code": 400, "message": "Words of the provider.", "status": "INVALID_ARGUMENT"}}],
}


def _event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _named(document: dict[str, Any]) -> bytes:
    return b"event: " + str(document["type"]).encode() + b"\n" + _event(document)


def _chunk(model: str | None, delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": f"{model}-2025", "choices": [choice]}


def _chat(model: str | None) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"}
    head = {"id": "c-1", "object": "chat.completion", "created": 1, "model": f"{model}-2025"}
    return {**head, "choices": [choice], "usage": _USAGE}


def _response(model: str | None) -> dict[str, Any]:
    content: list[Any] = [{"type": "output_text", "text": "".join(WORDS), "annotations": []}]
    message: dict[str, Any] = {
        "type": "message",
        "id": "m-1",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }
    usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
    head = {"id": "r-1", "object": "response", "created_at": 1, "status": "completed", "model": f"{model}-2025"}
    return {**head, "output": [message], "usage": usage}


def _embeddings(model: str | None) -> dict[str, Any]:
    vector = {"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}
    return {"object": "list", "model": model, "data": [vector], "usage": {"prompt_tokens": 2, "total_tokens": 2}}


def _message(model: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": f"{model}-20251001",
        "content": [{"type": "text", "text": "".join(WORDS)}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 3},
    }


def _converse() -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": [{"text": "".join(WORDS)}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 5, "outputTokens": 3, "totalTokens": 8},
        "metrics": {"latencyMs": 1},
    }
