"""The engine that is probed, and the errors of its answers."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import aiohttp
from pydantic import JsonValue, TypeAdapter, ValidationError

from pointsman_engines.client import EngineClient, PageUnread
from pointsman_engines.dialect import Dialect, Metric
from pointsman_engines.exposition import Exposition

ANSWER_S: Final = 120.0
"""An engine without a GPU may take long for a few tokens."""
NO_SUCH_PATH: Final = (404, 405, 501)
CHAT: Final = "/v1/chat/completions"
MOVES_S: Final = 10.0
"""A gauge that has not moved by then doesn't move."""

_JSON: Final = TypeAdapter[JsonValue](JsonValue)


class FeatureMissing(Exception):
    """The engine doesn't have it; the text quotes the engine's answer."""


class Different(Exception):
    """The engine has it, but differs from the gateway's expectation; the text names the difference."""


@dataclass(frozen=True)
class ProbeAnswer:
    """The answer to one request."""

    status: int
    content_type: str
    body: bytes

    def read_json(self) -> JsonValue:
        """The body. Raises Different when it isn't JSON."""
        try:
            return _JSON.validate_json(self.body)
        except ValidationError:
            raise Different(f"HTTP {self.status} without JSON") from None

    def read_events(self) -> list[JsonValue]:
        """The data of each event of a stream but the mark that ends it. Raises Different."""
        if "text/event-stream" not in self.content_type:
            raise Different(f"the stream is of type {self.content_type or 'none'}")
        data = [line[5:].strip() for line in self.body.split(b"\n") if line.startswith(b"data:")]
        try:
            return [_JSON.validate_json(each) for each in data if each != b"[DONE]"]
        except ValidationError:
            raise Different("an event without JSON") from None


@dataclass(frozen=True)
class ProbedEngine:
    """One engine. `dialect` is None for an engine without metrics of a kind that is known."""

    url: str
    model: str
    http: aiohttp.ClientSession
    dialect: Dialect | None = None
    api_key: str | None = field(default=None, repr=False)

    @cached_property
    def client(self) -> EngineClient:
        """As the gateway asks it about itself."""
        return EngineClient(self.url, api_key=self.api_key, session=self.http)

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of an inference request."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    async def get(self, path: str) -> ProbeAnswer:
        """GET. Raises FeatureMissing for a path that the engine doesn't have."""
        return await self._ask("GET", path, None)

    async def post_request(self, path: str, body: Mapping[str, JsonValue]) -> ProbeAnswer:
        """POST, for the engine's model. Raises FeatureMissing when the engine doesn't have the path or refuses the
        request."""
        answer = await self._ask("POST", path, {"model": self.model, **body})
        if answer.status >= 400:
            raise FeatureMissing(f"HTTP {answer.status}: {_reason(answer)}")
        return answer

    async def post_refused(self, path: str, body: Mapping[str, JsonValue]) -> ProbeAnswer:
        """POST what must be refused."""
        answer = await self._ask("POST", path, {"model": self.model, **body})
        if answer.status < 400:
            raise Different(f"HTTP {answer.status} where a refusal was due")
        return answer

    async def read_exposition(self) -> Exposition:
        """Its metrics. Raises FeatureMissing."""
        try:
            return Exposition(await self.client.metrics(timeout=ANSWER_S))
        except PageUnread as error:
            raise FeatureMissing(str(error)) from None

    async def read_metric(self, metric: Metric) -> float | None:
        """The sum of a metric's samples; None where it has none."""
        samples = metric.finite_samples(await self.read_exposition())
        return sum(sample.value for sample in samples) if samples else None

    @asynccontextmanager
    async def keep_busy(self) -> AsyncGenerator[None]:
        """The engine generates a long answer inside; the client hangs up at the end."""
        body: dict[str, JsonValue] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Count the wagons of every train. " * 12}],
            "max_tokens": 2000,
            "min_tokens": 2000,
            "ignore_eos": True,
            "stream": True,
        }
        async with self.http.post(
            self.url + CHAT, json=body, headers=self.headers, timeout=aiohttp.ClientTimeout(total=ANSWER_S)
        ) as answer:
            if answer.status != 200:
                raise FeatureMissing(f"HTTP {answer.status} for a long stream")
            await answer.content.readany()
            yield
            answer.close()

    async def wait_until_metric(self, metric: Metric, wanted: "Wanted") -> float | None:
        """Seconds until the metric's value is wanted; None when it wasn't within `MOVES_S`."""
        began = time.monotonic()
        while (took := time.monotonic() - began) < MOVES_S:
            value = await self.read_metric(metric)
            if value is not None and wanted(value):
                return took
            await asyncio.sleep(0.01)
        return None

    async def _ask(self, method: str, path: str, body: JsonValue) -> ProbeAnswer:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        try:
            async with self.http.request(
                method, self.url + path, json=body, headers=self.headers, timeout=timeout
            ) as answer:
                found = ProbeAnswer(answer.status, answer.content_type, await answer.read())
        except TimeoutError:
            raise Different(f"no answer within {ANSWER_S:g} s") from None
        except aiohttp.ClientError as error:
            raise Different(f"the connection failed: {type(error).__name__}") from None
        if found.status in NO_SUCH_PATH and not _names_a_model(found):
            raise FeatureMissing(f"HTTP {found.status}")
        return found


class Wanted:
    """A value above or at a bound."""

    def __init__(self, *, above: float | None = None, at_most: float | None = None) -> None:
        self._above, self._at_most = above, at_most

    def __call__(self, value: float) -> bool:
        return (self._above is None or value > self._above) and (self._at_most is None or value <= self._at_most)


def member(value: JsonValue, *path: str | int) -> JsonValue:
    """The member at this path; None when it is missing."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    return value


def expect(value: JsonValue, kind: type, *path: str | int) -> JsonValue:
    """The member at this path, of this kind. Raises Different."""
    found = member(value, *path)
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise Different(f"{'.'.join(map(str, path))} is {type(found).__name__ if found is not None else 'missing'}")
    return found


def _names_a_model(answer: ProbeAnswer) -> bool:
    """Whether a 404 is about the model rather than the path."""
    try:
        return isinstance(json.loads(answer.body).get("error"), dict)
    except (ValueError, AttributeError):
        return False


def _reason(answer: ProbeAnswer) -> str:
    try:
        document: JsonValue = _JSON.validate_json(answer.body)
    except ValidationError:
        return "no reason"
    for path in (("error", "message"), ("message",), ("detail",)):
        found = member(document, *path)
        if isinstance(found, str):
            return found.splitlines()[0][:120]
    return "no reason"
