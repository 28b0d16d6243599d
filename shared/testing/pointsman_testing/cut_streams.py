"""Streams that break off, through the gateway's own code and from engines in this process."""

import json
import os
import random
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pointsman_apis.api import Api
from pointsman_apis.asked_choices import AskedChoices, indices
from pointsman_apis.beginning import begins as says
from pointsman_apis.chat import CHAT
from pointsman_apis.streams import EventSplitter
from pointsman_apis.token_ids import with_token_ids
from pointsman_frontend.adapters.engine_connection import AnswerCutOff, EndpointFailed
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.relay import relay_stream
from pointsman_frontend.adapters.rest_of_stream import AskTokens, RestOfStream, learn_tokens
from pointsman_frontend.domain.resuming.question import Question
from pointsman_frontend.domain.resuming.resumable import Setting, resuming_of, token_ids_of
from pointsman_frontend.domain.resuming.resuming import Resuming
from pointsman_testing.answering_engine import AnsweringEngine
from pointsman_testing.continuing_engine import THINKING_END, Body, ContinuingEngine, thinks

CUTS: Final = int(os.environ.get("POINTSMAN_CUTS", "400"))
"""Streams that a test cuts. `POINTSMAN_CUTS=20000` takes some minutes."""
LONGEST: Final = 4096
FIRST: Final = ContinuingEngine()
OTHER: Final = ContinuingEngine(model="other-name", answer_id="2", together=2)


def _hold(true: bool, otherwise: str) -> None:
    if not true:
        raise AssertionError(otherwise)


@dataclass
class SentPieces:
    """An answer in pieces, which breaks off after the last one or ends."""

    pieces: list[bytes]
    breaks: bool
    status: int = 200
    headers: Headers = field(default_factory=Headers)

    @property
    def complete(self) -> bool:
        return not self.pieces and not self.breaks

    async def read(self) -> bytes:
        if self.pieces:
            return self.pieces.pop(0)
        if self.breaks:
            raise AnswerCutOff("closed the connection")
        return b""


@dataclass
class Client:
    """Keeps what it gets."""

    got: list[bytes] = field(default_factory=list[bytes])
    started: bool = False
    ended: bool = False

    async def start(self, status: int, headers: Headers) -> None:
        del status, headers
        self.started = True

    async def write(self, data: bytes) -> None:
        _hold(not self.ended, "the answer goes on behind its end")
        _hold(not data or data.endswith(b"\n\n"), "a piece of an event has left")
        self.got.append(data)

    async def end(self, data: bytes = b"") -> None:
        await self.write(data)
        self.ended = True

    async def fail(self, event: bytes) -> None:
        await self.end(event)

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        del status, headers, body
        raise AssertionError("not a stream")


def pieces(data: bytes, dice: random.Random) -> list[bytes]:
    """The same bytes, as a network brings them."""
    sizes = dice.choice(((10_000,), (40, 200), (1, 3)))
    found: list[bytes] = []
    while data:
        size = dice.choice(sizes)
        found.append(data[:size])
        data = data[size:]
    return found


def say(data: bytes) -> bool:
    """Whether a whole event says something: before that another engine begins the answer anew."""
    splitter = EventSplitter()
    return any(map(says, splitter.split_bytes(data)))


def resumed(api: Api, body: Body, setting: Setting, kind: str) -> Resuming | None:
    raw = json.dumps(body).encode()
    one = len(indices(api.name, body)) == 1
    mark = THINKING_END if thinks(body) else None
    return resuming_of(api, raw, setting, 9, kind, token_ids_of(api, raw), one=one, thinking_end=mark)


class EngineInProcess(Protocol):
    """An engine in this process."""

    def stream(self, path: str, body: Body) -> bytes:
        """The events of an answer."""
        ...


@dataclass
class CutStream:
    """One stream through the gateway's own code, from engines in this process."""

    api: Api
    body: Body
    setting: Setting = "exact"
    kind: str = "vllm"
    first: ContinuingEngine = FIRST
    others: tuple[EngineInProcess, ...] = (OTHER,)
    ends: bool = True
    """An engine of `others` gives the rest."""
    questions: list[Question] = field(default_factory=list[Question])
    resuming: Resuming | None = None
    failures: list[str] = field(default_factory=list[str])
    begun: list[Question] = field(default_factory=list[Question])
    """The questions that an engine has begun to answer, one of each engine."""

    async def cut(self, cuts: list[int], dice: random.Random) -> bytes:
        """The client's bytes of a stream that is cut after so many bytes, as its rests are."""
        raw = json.dumps(self.body).encode()
        resuming = self.resuming = resumed(self.api, self.body, self.setting, self.kind)
        if resuming is None:
            raise AssertionError("the request can't be continued")
        sent = with_token_ids(raw) if resuming.asks_ids else raw
        resuming.sent = lambda: sent
        whole = self.first.stream(self.api.path, json.loads(sent))
        client, usage = Client(), self.api.usage()
        at = cuts[0] % (len(whole) + 1)
        if not say(whole[:at]):
            at = len(whole)
        parts = pieces(whole[:at], dice)
        try:
            await relay_stream(
                engine=SentPieces(parts[1:], breaks=at < len(whole)),
                client=client,
                headers=[],
                usage=usage,
                name=None,
                api=self.api,
                begun=parts[0],
                asked=AskedChoices(self.api.name, len(indices(self.api.name, self.body)), lambda: self.body),
                resuming=resuming,
            )
        except AnswerCutOff:
            resuming.break_off()
            for number in range(9):
                following = cuts[number + 1] if number + 1 < len(cuts) else None
                engine = self.others[number % len(self.others)]
                asked = self._ask(engine, following, dice)
                rest = RestOfStream(resuming, client, usage, None, prompt_tokens=0, quiet_s=60)
                try:
                    await learn_tokens(resuming, self.kind, _tokens_of(engine))
                    await rest.relay_to_end(asked, self._begins, LONGEST)
                except EndpointFailed as failed:
                    self.failures.append(str(failed))
                    continue
                break
        _hold(client.ended or not self.ends, str(self.failures))
        return b"".join(client.got)

    def _begins(self, question: Question) -> None:
        self.begun.append(question)

    def _ask(self, engine: EngineInProcess, cut: int | None, dice: random.Random) -> Callable[[Question], Any]:
        async def ask(question: Question) -> SentPieces:
            self.questions.append(question)
            whole = engine.stream(question.path, json.loads(json.dumps(question.body)))
            at = len(whole) if cut is None else cut % (len(whole) + 1)
            return SentPieces(pieces(whole[:at], dice), breaks=at < len(whole))

        return ask


def _tokens_of(engine: EngineInProcess) -> AskTokens:
    async def ask(question: Mapping[str, object]) -> "array[int]":
        if not isinstance(engine, AnsweringEngine) or not engine.cuts_texts:
            raise EndpointFailed("failed", "answered 404", 404)
        return array("I", engine.tokens(dict(question)))

    return ask


def read(data: bytes) -> dict[str, Any]:
    """All that a client can read in a stream, the way its events are cut left aside."""
    splitter = EventSplitter()
    events = splitter.split_bytes(data)
    _hold(not splitter.rest() and events[-1].data == b"[DONE]", "the stream has no end")
    choices: dict[int, dict[str, Any]] = {}
    heads: set[tuple[Any, ...]] = set()
    usages: list[Any] = []
    for event in events[:-1]:
        document = json.loads(event.data)
        heads.add(tuple(document.get(name) for name in ("id", "object", "created", "model")))
        if document.get("usage") and not document["choices"]:
            usages.append(document["usage"])
        for choice in document["choices"]:
            found = choices.setdefault(
                choice["index"], {"text": "", "thoughts": "", "roles": [], "ends": [], "ids": [], "logprobs": []}
            )
            _hold(not found["ends"], "an ended choice goes on")
            delta = choice.get("delta", {})
            found["roles"] += [delta["role"]] if "role" in delta else []
            thought = delta.get("reasoning", "")
            _hold(not (thought and found["text"]), "a thought comes behind the answer")
            found["thoughts"] += thought
            found["text"] += delta.get("content", "") if "delta" in choice else choice["text"]
            found["ids"] += choice.get("token_ids") or []
            told: Body = choice.get("logprobs") or {}
            names = [name for name in ("tokens", "token_logprobs", "text_offset") if name in told]
            found["logprobs"] += told.get("content") or list(zip(*(told[name] for name in names), strict=True))
            if document.get("usage"):
                found["counted"] = document["usage"]
            if choice["finish_reason"] is not None:
                found["ends"].append((choice["finish_reason"], choice.get("stop_reason")))
    return {"choices": choices, "heads": heads, "usages": usages}


def ask(api: Api, number: int, **more: Any) -> Body:
    what: Body = {"prompt": f"Tell {number}"}
    if api is CHAT:
        what = {"messages": [{"role": "user", "content": f"Tell {number}"}]}
    return {"model": "m", "stream": True, "temperature": 0, "max_tokens": 60} | what | more


def expected(api: Api, body: Body) -> dict[str, Any]:
    found = read(FIRST.stream(api.path, body))
    return found | {"heads": {(*head[:3], "m") for head in found["heads"]}}
