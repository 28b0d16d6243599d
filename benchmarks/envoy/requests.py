"""The requests of the benchmark."""

import json
from typing import Final

from benchmarks.overhead.stack import MODEL

PATH: Final = "/v1/chat/completions"


def body(kilobytes: float, *, stream: bool = False) -> bytes:
    """A chat whose prompt has about `kilobytes` kilobytes."""
    prompt = "An ordinary sentence of a prompt. " * max(1, int(kilobytes * 1024 / 34))
    return json.dumps({"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": prompt}]}).encode()
