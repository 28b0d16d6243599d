"""Sends one request of the demo as any client would, and measures it."""

import json
import time
from typing import NamedTuple, cast

import aiohttp

from pointsman_cli.demo.workload import Request

TIMEOUT = aiohttp.ClientTimeout(total=60.0)


class ClientAnswer(NamedTuple):
    """The result of one request."""

    kind: str
    status: int
    """0 when there was no HTTP answer."""
    text: str
    first_token_s: float | None
    """Seconds from sending the request to the first token; None when the answer isn't streamed."""
    took_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    problem: str = ""
    """The error in the server's words; empty when all went well."""


class _Reading:
    """An answer while it comes in."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.first_token_at: float | None = None
        self.usage: dict[str, object] = {}
        self.problem = ""

    def take(self, document: dict[str, object]) -> None:
        """One JSON document: an event of a stream, or the whole answer."""
        if (error := document.get("error")) is not None:
            self.problem = _words(error)
        if isinstance(usage := document.get("usage"), dict):
            self.usage = cast("dict[str, object]", usage)
        for choice in cast("list[dict[str, object]]", document.get("choices") or []):
            part = choice.get("delta") or choice.get("message") or choice
            content = cast("dict[str, object]", part)
            text = content.get("content") or content.get("text")
            if isinstance(text, str) and text:
                self.text.append(text)
                self.first_token_at = self.first_token_at or time.perf_counter()


async def send(door: str, request: Request, http: aiohttp.ClientSession) -> ClientAnswer:
    """Send a request and read its answer to the end. Never raises on what the network or the server does."""
    began = time.perf_counter()
    reading = _Reading()
    status = 0
    try:
        async with http.post(
            door + request.path, json=request.body, headers=request.headers, timeout=TIMEOUT
        ) as response:
            status = response.status
            if response.content_type == "text/event-stream":
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        reading.take(cast("dict[str, object]", json.loads(line[6:])))
            else:
                reading.take(cast("dict[str, object]", await response.json(content_type=None)))
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        reading.problem = str(error) or type(error).__name__
    if status >= 400 and not reading.problem:
        reading.problem = f"HTTP {status}"
    first = reading.first_token_at
    details = reading.usage.get("prompt_tokens_details")
    return ClientAnswer(
        kind=request.kind,
        status=status,
        text="".join(reading.text),
        first_token_s=first - began if first is not None and request.streamed else None,
        took_s=time.perf_counter() - began,
        prompt_tokens=_count(reading.usage, "prompt_tokens"),
        cached_tokens=_count(cast("dict[str, object]", details), "cached_tokens") if isinstance(details, dict) else 0,
        completion_tokens=_count(reading.usage, "completion_tokens"),
        problem=reading.problem,
    )


def _count(usage: dict[str, object], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else 0


def _words(error: object) -> str:
    if isinstance(error, dict):
        message = cast("dict[str, object]", error).get("message")
        return message if isinstance(message, str) else "an error without a message"
    return str(error)
