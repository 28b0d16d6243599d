"""The cost of `resume: exact` for streams that no engine breaks off, beside `resume: off`.

`python -m benchmarks.resume_cost [TOKENS …]` passes streams of so many tokens through the relay, with both settings in
turn and in one process, and prints the CPU time of the shortest of many rounds. Sockets aren't part of it.
"""

import asyncio
import gc
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from benchmarks.machine import describe
from pointsman_apis.asked_choices import AskedChoices
from pointsman_apis.chat import CHAT
from pointsman_apis.token_ids import with_token_ids
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.relay import relay_stream
from pointsman_frontend.domain.resuming.resumable import Setting, resuming_of

ROUNDS: Final = 40
STREAMS: Final = 3200
"""Tokens of all streams of a round."""
PROMPT: Final = 250
BODY: Final = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"%b"}]}' % (b"x" * 1000)
HEAD: Final = (
    b'data: {"id":"chatcmpl-1b2c3d4e5f60718293a4b5c6d7e8f901","object":"chat.completion.chunk","created":1764383000,'
    b'"model":"llama-3.1-8b","choices":[{"index":0,'
)


def ids(name: bytes, *numbers: int) -> bytes:
    """A member of an event, as vLLM writes it."""
    return b',"%b":[%b]' % (name, b",".join(b"%d" % number for number in numbers))


def pieces(tokens: int, *, told: bool) -> list[bytes]:
    """A stream of vLLM, an event for each token. `told`: with token ids."""
    told_ids = [ids(b"token_ids", 1000 + number) if told else b"" for number in range(tokens)]
    prompt = ids(b"prompt_token_ids", *range(900, 900 + PROMPT)) if told else b""
    first = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b}\n\n' % prompt
    texts = [
        b'"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null%b}]}\n\n' % (number, each)
        for number, each in enumerate(told_ids[:-1])
    ]
    last = b'"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":null%b}]}\n\n' % told_ids[-1]
    return [*(HEAD + each for each in (first, *texts, last)), b"data: [DONE]\n\n"]


@dataclass(slots=True)
class Engine:
    """An answer of which every piece is here."""

    pieces: list[bytes]
    place: int = 1
    status: int = 200
    headers: Headers = field(default_factory=Headers)

    @property
    def complete(self) -> bool:
        """Whether the last piece was read."""
        return self.place >= len(self.pieces)

    async def read(self) -> bytes:
        """The next piece."""
        place = self.place
        self.place += 1
        return self.pieces[place] if place < len(self.pieces) else b""


class Client:
    """Takes an answer."""

    started = True

    async def start(self, status: int, headers: Headers) -> None:
        """Take the status and headers."""

    async def write(self, data: bytes) -> None:
        """Take a part of the body."""

    async def end(self, data: bytes = b"") -> None:
        """Take the last part."""

    async def fail(self, event: bytes) -> None:
        """Take the last event of a stream that failed."""

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Take a whole answer."""


async def relay(stream: list[bytes], setting: Setting) -> None:
    """Pass one stream on."""
    resuming = resuming_of(CHAT, BODY, setting, 2, "vllm", "unasked", one=True)
    if resuming is not None:
        resuming.sent = partial(with_token_ids, BODY)
        with_token_ids(BODY)
    await relay_stream(
        engine=Engine(stream),
        client=Client(),
        headers=[],
        usage=CHAT.usage(),
        name=None,
        api=CHAT,
        begun=stream[0],
        asked=AskedChoices(CHAT.name, 1, dict),
        resuming=resuming,
    )


async def measure(tokens: int) -> dict[Setting, float]:
    """Microseconds of CPU time a stream."""
    streams: dict[Setting, list[bytes]] = {"off": pieces(tokens, told=False), "exact": pieces(tokens, told=True)}
    best: dict[Setting, float] = {}
    number = max(1, STREAMS // tokens)
    for _ in range(ROUNDS):
        for setting, stream in streams.items():
            gc.collect()
            began = time.process_time()
            for _ in range(number):
                await relay(stream, setting)
            took = (time.process_time() - began) / number * 1e6
            best[setting] = min(took, best.get(setting, took))
    return best


def main() -> int:
    """Print a line for each length."""
    print(f"machine: {describe()}\n")
    for tokens in [int(each) for each in sys.argv[1:]] or [16, 200]:
        best = asyncio.run(measure(tokens))
        more = best["exact"] - best["off"]
        print(
            f"{tokens} tokens: off {best['off']:.1f} us, exact {best['exact']:.1f} us: {more:.1f} us more, "
            f"{more / tokens:.2f} us a token"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
