"""An engine that behaves as its `Behaviour` says."""

import asyncio
import json
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.scripted_engine import Received
from pointsman_testing.unruly.behaviour import GOOD, Behaviour

CHAT: Final = "/v1/chat/completions"
_RST: Final = struct.pack("ii", 1, 0)
_BACKLOG: Final = 256
_RESTART_S: Final = 0.3
_FORMS: Final[dict[str, str]] = {"nan": "NaN", "negative": "-5", "huge": "1e30"}

End = Literal["", "done", "aborted", "refused", "cut"]
"""`aborted`: the client hung up first. `refused`: an error, or the end of the connection, instead of any work. `cut`:
the engine ended an answer that it had begun. Empty: at work."""


class EngineWork(msgspec.Struct):
    """One request as the engine saw it; times are of `time.monotonic()`."""

    request: str
    """The word that the prompt begins with."""
    began: float
    head: float | None = None
    """When the head of an answer was sent."""
    first_byte: float | None = None
    """When the first byte of its body was sent."""
    ended: float | None = None
    end: End = ""

    @property
    def started(self) -> bool:
        """Whether there was any work for it."""
        return self.end != "refused"


@dataclass(eq=False)
class UnrulyEngine(FakeEngine):
    """Serves chat completions, one token an event; as many as `max_tokens` says."""

    model: str = "m"
    slots: int = 64
    """Requests that run at the same time; the others wait."""
    first_token_s: float = 0.02
    """Of the engine alone: prompts are read one after the other."""
    token_s: float = 0.01
    behaviour: Behaviour = GOOD
    work: list[EngineWork] = field(default_factory=list[EngineWork])
    """Every request of the API, in order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.started_at = time.time()
        self.models = {"object": "list", "data": [{"id": self.model, "object": "model", "max_model_len": 131072}]}
        self._idle: set[asyncio.StreamWriter] = set()  # of connections between two requests
        self._slots = asyncio.Semaphore(self.slots)
        self._prefill = asyncio.Lock()
        self._changed = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._turn = 0.0
        self._pages = 0
        self._told_at = 0.0
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def behave(self, behaviour: Behaviour) -> None:
        """Behave so from now on. Requests that hang go on with their answers."""
        self.behaviour = behaviour
        self._told_at = time.monotonic()
        changed, self._changed = self._changed, asyncio.Event()
        if behaviour.frozen:
            self._thawed.clear()
        else:
            self._thawed.set()
        changed.set()
        if not behaviour.listens:
            await self.stop()
        elif self._socket is None:
            await self.start()
        else:
            self._accept_or_not(self._socket)

    async def restart(self) -> None:
        """End as a process does, and come back on the same address with an empty cache."""
        await self.stop()
        await asyncio.sleep(_RESTART_S)
        self.started_at = time.time()
        self.prompt_tokens = self.generated_tokens = 0
        await self.start()

    async def start(self) -> None:
        """Listen, always on the same port."""
        self._socket = socket.create_server(("127.0.0.1", self.port), backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]
        self._accept_or_not(self._socket)

    async def stop(self) -> None:
        """Be gone: connections are cut, new ones refused."""
        self._stop_accepting()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        await super().stop()

    def _accept_or_not(self, listening: socket.socket) -> None:
        if self.behaviour.accepts and self._accepting is None:
            listening.listen(_BACKLOG)
            self._accepting = asyncio.create_task(self._accept(listening))
        elif not self.behaviour.accepts:
            self._stop_accepting()
            for writer in self._idle:
                writer.transport.abort()
            listening.listen(0)

    def _stop_accepting(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            self._accepting = None

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listening)
            protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._serve)
            await loop.connect_accepted_socket(lambda protocol=protocol: protocol, connection)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.behaviour.accept_s)
        await super()._serve(reader, writer)

    async def _head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, first: bool) -> bytes:
        if not first:
            self._idle.add(writer)
        idle_s = None if first else self.behaviour.idle_close_s if self.behaviour.accepts else 0.0
        try:
            async with asyncio.timeout(idle_s):
                return await super()._head(reader, writer, first=first)
        except TimeoutError:
            self._end(writer)
            raise ConnectionResetError from None
        finally:
            self._idle.discard(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        if self.behaviour.reset:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        writer.transport.abort()

    async def _answer(self, request: Received) -> None:
        self.received.clear()  # it would grow for as long as the process lives
        await self._thawed.wait()
        match request.path.partition("?")[0]:
            case path if path in self.paths:
                await self._tell(request, self.behaviour.metrics, self.behaviour.metrics_s)
            case "/health":
                await self._tell(request, self.behaviour.health, self.behaviour.health_s)
            case "/v1/models" if (listed := self.behaviour.models) is not None:
                document = {"object": "list", "data": [{"id": name, "object": "model"} for name in listed]}
                await request.answer(json.dumps(document).encode())
            case path if path == CHAT:
                await self._work(request)
            case _:
                await super()._answer(request)

    async def _tell(self, request: Received, status: int, takes_s: float) -> None:
        """A page about the engine itself, good or not."""
        if self._is_good_for_now():
            await super()._answer(request)
            return
        await asyncio.sleep(takes_s)
        await self._thawed.wait()
        if status != 200:
            await request.answer(b"not now", status=status, content_type="text/plain")
        else:
            await super()._answer(request)

    def _is_good_for_now(self) -> bool:
        flap_s = self.behaviour.flap_s
        return bool(flap_s) and int((time.monotonic() - self._told_at) / flap_s) % 2 == 1

    def _load(self) -> tuple[float, float, float]:
        told = (self.behaviour.running, self.behaviour.waiting, self.behaviour.kv_usage)
        running, waiting, kv_usage = (
            true if lie is None else lie for true, lie in zip(super()._load(), told, strict=True)
        )
        return running, waiting, kv_usage

    def metrics(self) -> str:
        """The whole exposition, in the form of the behaviour."""
        text = super().metrics()
        if self._is_good_for_now():
            return text
        match self.behaviour.exposition:
            case "renamed":
                return text.replace("vllm:num_requests_waiting", "vllm:num_waiting_requests")
            case "nan" | "negative" | "huge" as form:
                lines = (
                    f"{line.rpartition(' ')[0]} {_FORMS[form]}" if line.startswith("vllm:num_") else line
                    for line in text.splitlines()
                )
                return "\n".join(lines) + "\n"
            case "empty":
                return ""
            case "page":
                return "<html><body>Sign in</body></html>"
            case "torn":
                return text[: len(text) // 3]
            case "binary":
                return "\x00\x01\x1f\x8b" * 64
            case "ageless":
                return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("process_"))
            case "two_lives":
                self._pages += 1
                return text.replace(str(self.started_at), str((self.started_at or 0) - 1000 * (self._pages % 2)))
            case "true":
                return text

    async def _work(self, request: Received) -> None:
        document: dict[str, Any] = json.loads(request.body)
        word = str(document["messages"][-1]["content"]).partition(" ")[0]
        record = EngineWork(word, time.monotonic())
        self.work.append(record)
        answering = asyncio.create_task(self._generate(request, record, document))
        leaving = asyncio.create_task(request.gone.wait())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not answering.done():
                answering.cancel()
                record.end = "aborted"
            record.ended = time.monotonic()
        try:
            await answering
        except (asyncio.CancelledError, ConnectionError):
            record.end = record.end or "aborted"

    async def _generate(self, request: Received, record: EngineWork, document: dict[str, Any]) -> None:
        behaviour = self._behaviour_of_next()
        model, listed = str(document["model"]), behaviour.models
        if behaviour.status != 200 or (listed is not None and model not in listed):
            record.end = "refused"
            status, error = (behaviour.status, _error(behaviour.status)) if behaviour.status != 200 else (404, _UNKNOWN)
            await request.answer(json.dumps(error).encode(), status=status)
            return
        if behaviour.garbage:
            record.end = "refused"
            await request.write(b"\x15\x03\x01 not HTTP\r\n\r\n")
            self._end(request.writer)
            return
        if behaviour.cut == "head":
            record.end = "refused"
            self._end(request.writer)
            return
        tokens = int(document.get("max_tokens") or 4)
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            if behaviour.hang == "head":
                await self._hang()
            async with self._prefill:
                await self._pass(self.first_token_s)
            self.prompt_tokens += len(request.body) // 4
            await self._pass(behaviour.late_s)
            answer = self._stream if document.get("stream") else self._document
            await answer(request, record, model, tokens, behaviour)
        finally:
            self.running -= 1
            self._slots.release()
        record.end = record.end or "done"

    async def _stream(
        self, request: Received, record: EngineWork, model: str, tokens: int, behaviour: Behaviour
    ) -> None:
        record.head = time.monotonic()
        await request.begin_stream()
        for number in range(tokens + 1):
            if number <= 1 and await self._breaks_off(request, record, behaviour, ("body", "event")[number]):
                return
            if number:
                await self._pass(self.token_s + behaviour.trickle_s)
                self.generated_tokens += 1
            if number == tokens // 2:
                await self._pass(behaviour.pause_s)
            record.first_byte = record.first_byte or time.monotonic()
            last = number == tokens
            word, reason = behaviour.say_token(number)
            choice = {"index": 0, "delta": {} if last else {"content": word}, "finish_reason": reason if last else None}
            usage = self._usage(request, tokens if word else 1) if last else {}
            await self._event(request, {"id": "u", "object": _CHUNK, "model": model, "choices": [choice], **usage})
        await request.chunk(b"data: [DONE]\n\n")
        await request.chunk(b"")

    async def _event(self, request: Received, document: dict[str, Any]) -> None:
        await request.chunk(b"data: " + json.dumps(document).encode() + b"\n\n")

    async def _document(
        self, request: Received, record: EngineWork, model: str, tokens: int, behaviour: Behaviour
    ) -> None:
        for _ in range(tokens):
            await self._pass(self.token_s)
            self.generated_tokens += 1
        said = "".join(behaviour.say_token(number)[0] for number in range(tokens))
        choice = {"index": 0, "message": {"content": said}, "finish_reason": behaviour.say_token(tokens)[1]}
        usage = self._usage(request, tokens if said else 1)
        document = {"id": "u", "object": "chat.completion", "model": model, "choices": [choice], **usage}
        body = json.dumps(document).encode()
        half = len(body) // 2
        record.head = record.first_byte = time.monotonic()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        if not (behaviour.cut or behaviour.hang or behaviour.trickle_s):
            await request.write(head.encode() + body)
            return
        record.first_byte = None
        await request.write(head.encode())
        if await self._breaks_off(request, record, behaviour, "body"):
            return
        record.first_byte = time.monotonic()
        await request.write(body[:half])
        if await self._breaks_off(request, record, behaviour, "event"):
            return
        await self._pass(behaviour.trickle_s)
        await request.write(body[half:])

    async def _breaks_off(self, request: Received, record: EngineWork, behaviour: Behaviour, place: str) -> bool:
        """Hang or cut here, where the behaviour says so; True: the answer is over."""
        if behaviour.cut == place:
            record.end = "cut"
            self._end(request.writer)
            return True
        if behaviour.hang == place:
            await self._hang()
        return False

    def _usage(self, request: Received, tokens: int) -> dict[str, Any]:
        prompt = len(request.body) // 4
        cached = self.behaviour.cached_tokens
        details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
        true = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens, **details}
        match self.behaviour.usage:
            case "absent":
                return {}
            case "negative":
                return {"usage": dict.fromkeys(true, -3)}
            case "huge":
                return {"usage": {**true, "completion_tokens": 10**30}}
            case "text":
                return {"usage": "many"}
            case "true":
                return {"usage": true}

    def _behaviour_of_next(self) -> Behaviour:
        """The faulty one for as many requests as its `part` says."""
        self._turn += self.behaviour.part
        if self._turn < 1:
            return GOOD
        self._turn -= 1
        return self.behaviour

    async def _hang(self) -> None:
        # Between the request's beginning and here it may have become good.
        if self.behaviour.hang:
            await self._changed.wait()

    async def _pass(self, seconds: float) -> None:
        """Compute for so long, and longer while nothing moves."""
        await asyncio.sleep(seconds)
        await self._thawed.wait()


_CHUNK: Final = "chat.completion.chunk"
_UNKNOWN: Final = {
    "error": {"message": "The model does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
}


def _error(status: int) -> dict[str, Any]:
    """As vLLM's, and FastAPI's for an unknown path."""
    if status == 404:
        return {"detail": "Not Found"}
    return {"error": {"message": "unruly", "type": "unruly", "param": None, "code": status}}
