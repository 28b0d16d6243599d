"""A backend that answers at once with fixed bytes: the far end of overhead benchmarks.

It speaks just enough HTTP to be an engine for a gateway, on a raw asyncio protocol, so that nearly all CPU time
measured is the gateway's.
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final, cast

import httptools
import orjson

from pointsman_simulator.api import AnswerUsage, Generation, model_list
from pointsman_simulator.shape import shape_of

_METRICS: Final = (
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{{engine="0",model_name="{model}"}} 0\n'
    "# TYPE vllm:num_requests_waiting gauge\n"
    'vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0\n'
    "# TYPE vllm:kv_cache_usage_perc gauge\n"
    'vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} 0\n'
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{{block_size="64",engine="0",num_gpu_blocks="16384"}} 1\n'
)
_WORDS: Final = (" the", " points", " are", " set", " for", " a", " train")


@dataclass(frozen=True, slots=True)
class FixedConfig:
    model: str
    host: str = "127.0.0.1"
    port: int = 0
    tokens: int = 16
    """Tokens of an answer, one stream event each."""
    interval_ms: float = 0.0
    """Between stream events; 0 writes them all at once."""


class _Answers:
    """Every answer, rendered once."""

    def __init__(self, config: FixedConfig) -> None:
        # An answer of one word over and over is what a broken engine gives.
        words = [*islice(cycle(_WORDS), config.tokens)]
        self.whole: dict[str, bytes] = {}
        self.events: dict[str, list[bytes]] = {}
        self.stream: dict[str, bytes] = {}
        for surface, path in (("chat", "/v1/chat/completions"), ("completions", "/v1/completions")):
            generation = Generation(
                surface="chat" if surface == "chat" else "completions",
                model=config.model,
                prompts=[],
                max_tokens=config.tokens,
                min_tokens=0,
                choices_per_prompt=1,
                stream=False,
                include_usage=True,
            )
            shape = shape_of(generation, "0123456789abcdef" * 2)
            usage = AnswerUsage(256, config.tokens, 0)
            body = shape.build_body([("".join(words), "length")], usage)
            self.whole[path] = _response(200, "application/json", body)
            events = [
                shape.write_opening(0) + shape.write_tokens(0, words[:1]),
                *(shape.write_tokens(0, [word]) for word in words[1:]),
                shape.write_closing(0, "length") + shape.end_stream(usage),
            ]
            self.events[path] = [_chunk(event) for event in events]
            self.events[path][-1] += b"0\r\n\r\n"
            self.stream[path] = _STREAM_HEAD + b"".join(self.events[path])
        models = orjson.dumps(model_list((config.model,), (), 131072))
        self.plain = {
            "/v1/models": _response(200, "application/json", models),
            "/health": _response(200, "text/plain", b""),
            "/metrics": _response(200, "text/plain; version=0.0.4", _METRICS.format(model=config.model).encode()),
        }
        error = orjson.dumps({"error": {"message": "Not Found", "type": "NotFoundError", "param": None, "code": 404}})
        self.missing = _response(404, "application/json", error)


class _Connection(asyncio.Protocol):
    def __init__(self, answers: _Answers, interval_s: float) -> None:
        self._answers = answers
        self._interval_s = interval_s
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._body: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._transport is not None:
                self._transport.close()

    def on_message_begin(self) -> None:
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        self._path = url.decode("latin-1").partition("?")[0]

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        answers, path = self._answers, self._path
        if path not in answers.whole:
            self._write(answers.plain.get(path, answers.missing))
        elif not _wants_stream(self._body):
            self._write(answers.whole[path])
        elif self._interval_s:
            self._write(_STREAM_HEAD)
            self._send_events(answers.events[path], 0)
        else:
            self._write(answers.stream[path])

    def _send_events(self, events: list[bytes], index: int) -> None:
        self._write(events[index])
        if index + 1 < len(events):
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._send_events, events, index + 1)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def run_fixed(config: FixedConfig, announce: Callable[[str, int], None]) -> None:
    """Serve until SIGTERM or SIGINT. `announce` is called with host and port once it listens."""
    answers = _Answers(config)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = await loop.create_server(
        lambda: _Connection(answers, config.interval_ms / 1000), config.host, config.port, backlog=1024
    )
    announce(config.host, server.sockets[0].getsockname()[1])
    await stopping.wait()
    server.close()


def _wants_stream(body: list[bytes]) -> bool:
    """A search instead of parsing: the benchmark's own client writes the flag at either end of the body."""
    if not body:
        return False
    ends = body[0][:256] + body[-1][-256:]
    return b'"stream":true' in ends or b'"stream": true' in ends


def _response(status: int, content_type: str, body: bytes) -> bytes:
    reason = {200: "OK", 404: "Not Found"}[status]
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
