"""Text to tokens and back, for engines that have no model: four UTF-8 bytes are a token.

An answer that comes back in the next turn's prompt yields the tokens that were generated, so its KV blocks are
found again as they would be with a real tokenizer and chat template.
"""

import hashlib
import json
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

BYTES_PER_TOKEN: Final = 4

Tokens: TypeAlias = NDArray[np.uint32]

_WORDS: Final = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old "
    "see two way who boy did its let put say she too use dad mom sun sea sky red big cat dog car map pen cup "
    "box key bed arm leg eye ear"
)
WORDS: Final = tuple(f" {word}" for word in _WORDS.split())
"""The words of answers: one token each."""


def tokenize(text: str) -> Tokens:
    """One token per four bytes of UTF-8, the last one padded."""
    data = text.encode()
    return np.frombuffer(data + b"\0" * (-len(data) % BYTES_PER_TOKEN), dtype="<u4")


def render_chat(messages: Sequence[Mapping[str, object]], tools: object = None) -> Tokens:
    """A chat template: tools, then each message between markers, then the opening of the answer."""
    parts: list[Tokens] = []
    if tools:
        parts += [_marker("tools"), tokenize(_compact(tools)), _END]
    for message in messages:
        parts += [_marker(str(message.get("role"))), tokenize(_content_text(message)), _END]
    parts.append(_marker("assistant"))
    return np.concatenate(parts)


def generate(seed: int, count: int, words: Sequence[str] = WORDS) -> list[str]:
    """`count` words of one token each, the same for the same seed."""
    return random.Random(seed).choices(words, k=count)


def natural_length(seed: int, mean: float) -> int:
    """Tokens of an answer without a limit: 16 and an exponential tail, `mean` (> 16) on average."""
    return 16 + int(random.Random(~seed).expovariate(1 / (mean - 16)))


def name_blocks(root: str, tokens: Tokens, block_size: int) -> list[int]:
    """Names (63-bit) of all full blocks; each covers everything before it and `root` (model or adapter)."""
    data = tokens.tobytes()
    width = block_size * tokens.itemsize
    parent = hashlib.blake2b(root.encode(), digest_size=8).digest()
    names: list[int] = []
    for start in range(0, len(data) - width + 1, width):
        parent = hashlib.blake2b(data[start : start + width], digest_size=8, key=parent).digest()
        names.append(int.from_bytes(parent, "little") >> 1)
    return names


def fingerprint(tokens: Tokens) -> int:
    return zlib.crc32(tokens.tobytes())


def _marker(name: str) -> Tokens:
    return np.array([zlib.crc32(f"<|{name}|>".encode())], dtype="<u4")


_END: Final = _marker("end")


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _content_text(message: Mapping[str, object]) -> str:
    content = message.get("content")
    rest = {key: value for key, value in message.items() if key not in ("role", "content") and value}
    text = content if isinstance(content, str) else "" if content is None else _compact(content)
    return text + (_compact(rest) if rest else "")
