"""A `ContinuingEngine` on a real socket, at a real engine's pace: `python -m pointsman_testing.continuing_server PORT`.

It reports load as vLLM does. SIGTERM ends it at once, with all that it has under way.
"""

import argparse
import asyncio
import json
import signal
import time
from dataclasses import dataclass, field
from typing import Final

from pointsman_testing.continuing_engine import Body, ContinuingEngine
from pointsman_testing.fake_engine import FakeEngine
from pointsman_testing.scripted_engine import Received

MODEL: Final = "m"
ASKED: Final[Body] = {"temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
"""Members of a request with which any engine of this kind gives the same answer."""


@dataclass(eq=False)
class ContinuingServer(FakeEngine):
    """Answers chats and completions."""

    engine: ContinuingEngine = field(default_factory=lambda: ContinuingEngine(model=MODEL, together=1))
    blocks: int = 100_000
    pause_s: float = 0.05
    """Between two events."""

    async def _answer(self, request: Received) -> None:
        if request.method != "POST":
            await super()._answer(request)
            return
        asked = json.loads(request.body)
        self.running += 1
        try:
            await (self._stream(request, asked) if asked.get("stream") else self._whole(request, asked))
        finally:
            self.running -= 1

    async def _stream(self, request: Received, asked: Body) -> None:
        await request.begin_stream()
        due = time.monotonic()
        for event in self.engine.events(request.path, asked):
            due += self.pause_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.generated_tokens += 1
            await request.chunk(event)
        await request.chunk(b"")

    async def _whole(self, request: Received, asked: Body) -> None:
        pieces: list[str] = []
        usage: Body = {}
        for event in self.engine.events(request.path, {**asked, **ASKED, "stream": True}):
            await asyncio.sleep(self.pause_s)
            if request.gone.is_set():
                return
            if event == b"data: [DONE]\n\n":
                break
            self.generated_tokens += 1
            document = json.loads(event[6:])
            usage = document.get("usage") or usage
            pieces += [choice["delta"].get("content") or "" for choice in document["choices"]]
        message = {"role": "assistant", "content": "".join(pieces)}
        choice: Body = {"index": 0, "finish_reason": "length", "message": message}
        answer = {"id": "1", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}
        await request.answer(json.dumps(answer).encode())


async def serve(port: int, pause_s: float) -> None:
    """Serve until SIGTERM."""
    server = ContinuingServer(pause_s=pause_s, started_at=time.time())
    server.port = port
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with server:
        await ended.wait()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--pause-s", type=float, default=0.05, help="seconds between two tokens")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.pause_s))


if __name__ == "__main__":
    main()
