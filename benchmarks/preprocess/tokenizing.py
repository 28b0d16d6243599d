"""The cost of exact tokens in the preprocessor. Run: `python -m benchmarks.preprocess.tokenizing [FOLDER]`.

One thread, no bus. `render`: the chat template alone. `cold`: rendered and tokenized, no piece known before. `next
turn`: one more answer and question at the end of a conversation whose tokens are known. `again`: the identical text.
`stage`: the whole stage for the next turn. FOLDER holds a tokenizer; the default is a small one with a template like
Llama's, made here, whose tokens are shorter than a real one's. Then the longest stall of an event loop while a thread
tokenizes 2 MiB.
"""

import asyncio
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson
from benchmarks.machine import describe as machine
from benchmarks.preprocess.__main__ import HEADERS, PATH, longest_stall_ms, shortest_us
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.journey import Journey, StageReport
from pointsman_models.tokenization.prompt_tokenizer import Folder, PromptTokenizer, read_folder
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.domain.model_tokenizers import ModelTokenizer
from pointsman_preprocessor.domain.pipeline import depart, describe
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_testing.builders import preprocess_request
from pointsman_testing.tiny_tokenizer import write_tokenizer

CHATS: Final = ((1_000, 3), (100_000, 51))
TURN_BYTES: Final = 300
LARGE: Final = 2 * 2**20
BAR_MS: Final = 40.0


def words(size: int, seed: int) -> str:
    """Text of about `size` bytes in which most words are new."""
    dice = random.Random(seed)
    letters = "etaoinshrdlucmfwyp"
    made: list[str] = []
    left = size
    while left > 0:
        word = "".join(dice.choices(letters, k=dice.randint(2, 9)))
        made.append(word)
        left -= len(word) + 1
    return " ".join(made)


def turns(size: int, messages: int, seed: int = 1) -> list[JsonValue]:
    """A conversation of about `size` bytes."""
    each = size // messages
    return [{"role": ("user", "assistant")[n % 2], "content": words(each, seed * 1000 + n)} for n in range(messages)]


def body(messages: list[JsonValue]) -> bytes:
    return orjson.dumps({"model": "m", "messages": messages, "stream": True})


def stage(tokenizer: ModelTokenizer, raw: bytes) -> Journey:
    """The whole stage without the bus."""
    request = preprocess_request(path=PATH, headers=HEADERS)
    incoming = Incoming(request, parse(PATH, raw), read_headers(request.headers))
    facts = describe(incoming, (64,), tokenizer.build_prompt(incoming))
    return depart(incoming, facts, StageReport(stage="preprocessor", instance="host-1"))


def measure(files: Folder, size: int, messages: int) -> None:
    """Print the figures of one conversation."""
    known = turns(size, messages)
    fields: dict[str, JsonValue] = {"messages": known}
    forgetful, tokenizer = PromptTokenizer(files, cache_bytes=0), PromptTokenizer(files)
    model = ModelTokenizer("m", tokenizer, 4 * LARGE)
    print(f"{size // 1000} KB, {messages} messages, {len(tokenizer.tokenize_chat(fields.get)) // 4:,} tokens")
    following: list[list[JsonValue]] = []
    for n in range(1, 4000):
        answer: JsonValue = {"role": "assistant", "content": words(TURN_BYTES, n)}
        following.append([*known, answer, {"role": "user", "content": words(60, -n)}])
    bodies = [body(messages) for messages in following[2000:]]
    work: dict[str, Callable[[], object]] = {
        "render": lambda: tokenizer.render(fields.get),
        "cold": lambda: forgetful.tokenize_chat(fields.get),
        "next turn": lambda: tokenizer.tokenize_chat({"messages": following.pop(0)}.get),
        "again": lambda: tokenizer.tokenize_chat(fields.get),
        "stage, next turn": lambda: stage(model, bodies.pop()),
    }
    for name, call in work.items():
        print(f"  {name:<18} {shortest_us(call):10.1f} us")


def main(folder: Path) -> int:
    """Print the figures; 1 when the loop stalls for too long."""
    files = read_folder(folder)
    print(f"machine: {machine()}")
    for size, messages in CHATS:
        measure(files, size, messages)
    large = body(turns(LARGE - 100_000, 100))
    model = ModelTokenizer("m", PromptTokenizer(files, cache_bytes=0), 4 * LARGE)
    late = asyncio.run(longest_stall_ms(lambda: stage(model, large), 3))
    kept = late <= BAR_MS
    verdict = "kept" if kept else "MISSED"
    print(f"longest stall of the loop, 2 MiB in a thread {late:6.1f} ms   bar {BAR_MS:g} ms   {verdict}")
    return 0 if kept else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else write_tokenizer(Path(made))))
