"""One gateway before one server that plays every kind of provider and a pool's engine, by the scripts of the
catalogue."""

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from pointsman_contracts.response import ResponseCompleted
from pointsman_testing import eventually
from pointsman_testing.observer import Observer
from pointsman_testing.scripted_engine import Received

from .catalogue import Quirk
from .forms import FORMS, NAME, stream

PATHS: Final = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
_TOKEN: Final = re.compile(rb"quirk-[0-9a-z-]+")
BACKUP: Final = "from backup"


@dataclass(frozen=True)
class Place:
    """Where a quirk occurs: an API of the client, and the service behind the gateway."""

    name: str
    api: str
    form: str
    provider: str = ""
    """Empty for the pool."""


PLACES: Final = (
    Place("openai", "chat", "chat", "openai"),
    Place("azure", "chat", "chat", "azure"),
    Place("vertex", "chat", "chat", "vertex"),
    Place("anthropic", "chat", "messages", "anthropic"),
    Place("bedrock", "chat", "converse", "bedrock"),
    Place("pool", "chat", "chat"),
    Place("messages", "messages", "messages", "anthropic"),
    Place("pool-messages", "messages", "messages"),
    Place("responses", "responses", "responses", "openai"),
    Place("pool-responses", "responses", "responses"),
)


def configuration(url: str, pauses: int) -> dict[str, Any]:
    """The gateway's; `pauses`: entries that have a model each, since they stop the provider for it."""
    key = {"credential": "env:QUIRKS_KEY"}
    providers: dict[str, Any] = {
        "openai": {"kind": "openai", "base_url": f"{url}/openai/v1", **key},
        "azure": {"kind": "azure", "base_url": f"{url}/azure", **key},
        "vertex": {"kind": "vertex", "base_url": f"{url}/vertex", **key},
        "anthropic": {"kind": "anthropic", "base_url": f"{url}/anthropic", **key},
        "bedrock": {"kind": "bedrock", "base_url": f"{url}/bedrock", "region": "eu-north-1", **key},
        "backup": {"kind": "openai", "base_url": f"{url}/backup/v1", **key},
        "backup-messages": {"kind": "anthropic", "base_url": f"{url}/backup", **key},
    }
    models: dict[str, Any] = {
        "backup-chat": {"provider": "backup", "served_as": "b"},
        "backup-responses": {"provider": "backup", "served_as": "b"},
        "backup-messages": {"provider": "backup-messages", "served_as": "b"},
    }
    served: list[str] = []
    for place in PLACES:
        for number in range(pauses + 1):
            name = model_of(place, number)
            where = {"provider": place.provider} if place.provider else {"pool": "own"}
            models[name] = {**where, "served_as": f"far-{place.name}-{number}", "cost": {"input": 1, "output": 2}}
            models[f"{name}-safe"] = {**models[name], "fallbacks": [f"backup-{place.api}"]}
            if not place.provider:
                served.append(f"far-{place.name}-{number}")
    stages = [{"stage": "guard/house", "timeout": "20s"}, "semantic-cache"]
    return {
        "pools": {
            "own": {
                "models": served,
                "discovery": "static",
                "engines": [{"url": url, "engine": "opaque", "health": "/health"}],
            }
        },
        "providers": providers,
        "models": models,
        "selectors": {},
        "guards": {"house": {}},
        "profile-picker": {
            "use": "rules",
            "rules": [{"when": 'headers["x-quirks"] == "plain"', "profile": "plain"}],
            "default": "guarded",
        },
        "profiles": {
            "plain": {"request": ["scheduler"]},
            "guarded": {"request": [*stages, "scheduler"], "response": stages},
        },
        "edge": {"decision_timeout": "10s"},
    }


def model_of(place: Place, number: int = 0) -> str:
    """The model's name for clients."""
    return f"{place.name}-{number}"


class Far:
    """The server's script: each request names its answer."""

    def __init__(self) -> None:
        self.answers: dict[bytes, tuple[Place, Quirk, bool]] = {}

    async def __call__(self, request: Received) -> None:
        """Answer one request."""
        found = _TOKEN.search(request.body)
        if request.method == "GET":
            await request.answer(b"{}")
        elif "/backup" in request.path or found is None or found[0] not in self.answers:
            await request.answer(*_backup(request))
        else:
            await _send(request, *self.answers[found[0]])


def _backup(request: Received) -> tuple[bytes]:
    path = request.path
    form = FORMS["messages" if "messages" in path else "responses" if "responses" in path else "chat"]
    if path.endswith(("/converse", "/converse-stream")):
        form = FORMS["converse"]
    return (form.whole(("1", "1"), (f"={BACKUP}",)),)


async def _send(request: Received, place: Place, quirk: Quirk, streamed: bool) -> None:
    form = FORMS[place.form]
    fails = quirk.body is not None and quirk.status != 200
    if quirk.body is not None:
        pieces = [quirk.body]
    elif streamed:
        pieces = stream(form, quirk.parts, quirk.counts or ("5", "3"))
    else:
        pieces = [form.whole(quirk.counts, quirk.parts)]
    if not place.provider:
        # An engine has the name by which the gateway asks it.
        model = str(json.loads(request.body)["model"]).encode()
        pieces = [piece.replace(NAME.encode(), model) for piece in pieces]
    if quirk.edit is not None:
        pieces = [quirk.edit(b"".join(pieces))]
    if quirk.cut:
        data = b"".join(pieces)
        pieces = [data[start : start + quirk.cut] for start in range(0, len(data), quirk.cut)]
    usual = form.content_type if streamed and not fails else "application/json"
    kind = usual if quirk.content_type is None else quirk.content_type
    lines = [f"HTTP/1.1 {quirk.status} Status", *([f"content-type: {kind}"] if kind else [])]
    lines += [f"{name}: {value}" for name, value in quirk.headers]
    framing = quirk.framing
    if framing == "length":
        lines.append(f"content-length: {sum(map(len, pieces))}")
    elif framing == "chunked":
        lines += ["transfer-encoding: chunked", *(["trailer: x-checksum"] if quirk.trailers else [])]
    else:
        lines.append("connection: close")
    await request.write(quirk.before + "\r\n".join(lines).encode() + b"\r\n\r\n")
    for position, piece in enumerate(pieces):
        if quirk.cut_off and position == len(pieces) - 1:
            # The earlier part has reached the client.
            await asyncio.sleep(0.15)
        if framing == "chunked":
            if piece:
                await request.chunk(piece)
        else:
            await request.write(piece)
        if not quirk.cut:
            await asyncio.sleep(0)
    if quirk.breaks:
        # The written bytes have left by then.
        await asyncio.sleep(0.02)
        request.cut()
    elif framing == "chunked":
        await request.write(b"0\r\n" + quirk.trailers + b"\r\n")
    elif framing == "close":
        request.writer.close()


@dataclass
class Answered:
    """A client's answer."""

    status: int
    body: bytes
    headers: dict[str, str]
    complete: bool
    event: ResponseCompleted | None = None


@dataclass
class Door:
    """One way into the gateway."""

    name: str
    url: str
    far: Far
    observer: Observer
    completed: list[ResponseCompleted]
    http: aiohttp.ClientSession
    port: int
    """Of the server that plays the others."""
    _asked: int = field(default=0)

    async def ask(
        self, place: Place, quirk: Quirk | None, *, streamed: bool, model: str, plain: bool = False, token: str = ""
    ) -> Answered:
        """One request to a place that answers with the quirk; None: as it should be."""
        self._asked += 1
        token = token or f"quirk-{self.name}-{place.name}-{self._asked}"
        self.far.answers[token.encode()] = (place, quirk or Quirk("none", "none"), streamed)
        body: dict[str, Any] = {"model": model, "stream": streamed}
        said = [{"role": "user", "content": f"Say {token}"}]
        body |= {"input": said} if place.api == "responses" else {"messages": said}
        if place.api == "chat" and streamed:
            body["stream_options"] = {"include_usage": True}
        if place.api == "messages":
            body["max_tokens"] = 100
        headers = {"content-type": "application/json", "x-quirks": "plain" if plain else "guarded"}
        async with self.http.post(self.url + PATHS[place.api], data=json.dumps(body), headers=headers) as answer:
            pieces: list[bytes] = []
            complete = True
            try:
                while piece := await answer.content.readany():
                    pieces.append(piece)
            except aiohttp.ClientError:
                complete = False
            got = Answered(
                answer.status,
                b"".join(pieces),
                {name.lower(): value for name, value in answer.headers.items()},
                complete,
            )
        request_id = got.headers.get("x-request-id")
        if request_id is not None:
            got.event = await eventually(
                lambda: next((each for each in self.completed if each.request_id == request_id), None)
            )
        return got
