"""CPU of an agent's body of 200 KB in the preprocessor. Run: `python -m benchmarks.preprocess.agent_body [FOLDER]`.

The body has Claude Code's form: 97 messages and more, with 20 tools behind them. Each request adds a call and its
result to the one before. One thread, no bus; CPU of the whole stage, from the body's bytes to the journey, means over
the same requests in turn: read as a whole, as one that is kept for the next (`first`), and as an addition to the one
before (`GrownBodies`); as text, and as tokens (FOLDER holds a tokenizer; the default is a small one with a template
like Llama's, made here, whose tokens are shorter than a real one's). `known` is an addition whose pieces the tokenizer
met before: the difference to `addition` is the tokenizer's library, for 2 KB of new text. Bars: the CPU as an addition,
as a share of the body read as a whole as text, and the CPU of a first body, as a share of one that isn't kept.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson
from benchmarks.machine import describe as machine
from benchmarks.preprocess.__main__ import HEADERS
from benchmarks.preprocess.tokenizing import words

from pointsman_apis.grown_bodies import GrownBodies
from pointsman_apis.requests import parse
from pointsman_contracts.journey import Journey, StageReport
from pointsman_core.config import load
from pointsman_models.tokenization.prompt_tokenizer import PromptTokenizer, read_folder
from pointsman_plugins.preprocessing import Incoming
from pointsman_plugins.prompt import prompt_of
from pointsman_preprocessor.domain.model_tokenizers import ModelTokenizer
from pointsman_preprocessor.domain.pipeline import Pipeline, depart, registry
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_preprocessor.plugins import BUILTIN
from pointsman_testing.builders import preprocess_request
from pointsman_testing.tiny_tokenizer import write_tokenizer

PATH: Final = "/v1/messages"
BYTES: Final = 200_000
TURNS: Final = 48
BAR: Final = 0.6
FIRST_BAR: Final = 1.03
REQUESTS: Final = 24


def step(number: int, size: int) -> list[dict[str, Any]]:
    """A call of a tool, and its result."""
    call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"file_path": f"/src/{number}.py"}}
    result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": words(size, number)}
    return [
        {"role": "assistant", "content": [{"type": "text", "text": words(80, -number)}, call]},
        {"role": "user", "content": [result]},
    ]


def bodies(count: int) -> Iterator[bytes]:
    """Requests of one session, each a step longer than the one before."""
    parameters = {f"p{each}": {"type": "string", "description": words(300, each)} for each in range(6)}
    schema = {"type": "object", "properties": parameters, "required": ["p0"]}
    tools = [{"name": f"tool{each}", "description": words(1200, each), "input_schema": schema} for each in range(20)]
    system = [{"type": "text", "text": words(20_000, 7), "cache_control": {"type": "ephemeral"}}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": words(4_000, 3)}]}]
    size = (BYTES - 105_000) // TURNS
    for number in range(TURNS + count):
        messages += step(number, size)
        if number >= TURNS:
            yield orjson.dumps(
                {
                    "model": "m", "messages": messages, "system": system, "tools": tools,
                    "metadata": {"user_id": "user_1_account__session_0a1b2c3d"}, "max_tokens": 32_000, "stream": True,
                }
            )  # fmt: skip


def stage(pipeline: Pipeline, tokenizer: ModelTokenizer | None, raw: bytes, kept: GrownBodies | None) -> Journey:
    """The whole stage without the bus."""
    request = preprocess_request(path=PATH, headers=HEADERS)
    body = parse(PATH, memoryview(raw), bodies=kept)
    incoming = Incoming(request, body, read_headers(request.headers), measured=prompt_of(body))
    pipeline.run(incoming)
    prompt = None if tokenizer is None else tokenizer.build_prompt(incoming)
    facts = pipeline.build_facts(incoming, prompt)
    return depart(incoming, facts, StageReport(stage="preprocessor", instance="host-1"))


def main(folder: Path) -> int:
    """Print the figures; 1 when the bar is missed."""
    print(f"machine: {machine()}")
    pipeline = Pipeline(load({}), registry(BUILTIN))
    files = read_folder(folder)
    tokenizer = ModelTokenizer("m", PromptTokenizer(files), 4 * BYTES)
    # Without a cache of pieces, as for a conversation that wasn't seen before.
    forgetful = ModelTokenizer("m", PromptTokenizer(files, cache_bytes=0), 4 * BYTES)
    text, tokens, known = GrownBodies(), GrownBodies(), GrownBodies()
    spent: dict[str, float] = {}
    size = 0
    for number, raw in enumerate(bodies(REQUESTS)):
        ways = {
            "text, whole": (None, None),
            "text, first": (None, GrownBodies()),
            "text, addition": (None, text),
            "tokens, whole": (forgetful, None),
            "tokens, first": (forgetful, GrownBodies()),
            "tokens, addition": (tokenizer, tokens),
            "tokens, known": (tokenizer, known),
        }
        if number % 2:
            # The first one finds colder caches.
            ways = {name: ways[name] for name in ("text, first", "text, whole", *ways)}
        found: dict[str, bytes] = {}
        for name, (model, kept) in ways.items():
            began = time.process_time()
            journey = stage(pipeline, model, raw, kept)
            if number >= REQUESTS // 4:
                spent[name] = spent.get(name, 0.0) + time.process_time() - began
            found[name] = bytes(journey.request.blocks)
        for kind in ("text", "tokens"):
            if len({blocks for name, blocks in found.items() if name.startswith(kind)}) > 1:
                raise AssertionError("all ways must name the same blocks")
        size = len(raw)
    print(f"{size // 1000} KB")
    whole = spent["text, whole"]
    for name, took in spent.items():
        each = took / (REQUESTS - REQUESTS // 4) * 1e6
        print(f"  {name:<18} {each:8.0f} us   {took / whole:.2f}")
    bars = [
        ("text, addition", "text, whole", BAR),
        ("tokens, addition", "text, whole", BAR),
        ("text, first", "text, whole", FIRST_BAR),
        ("tokens, first", "tokens, whole", FIRST_BAR),
    ]
    for name, base, bar in bars:
        ratio = spent[name] / spent[base]
        print(f"bar: {name:<16} / {base:<13} {ratio:.2f} of {bar:g}: {'kept' if ratio <= bar else 'MISSED'}")
    return 0 if all(spent[name] / spent[base] <= bar for name, base, bar in bars) else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else write_tokenizer(Path(made))))
