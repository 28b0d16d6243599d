"""The prompt as one stream of bytes, and its length in tokens.

Without a tokenizer a token is taken to be four bytes of that stream. A chat is not flattened into an invented
template (S4-5, S4-7): the stream is the serialised fields that every chat template renders first (tools, documents, the
template itself and its arguments), then the serialised messages. A conversation that grows by a turn keeps its stream
as a prefix (S4-12), and chats that differ in tools or template share nothing (S4-6).
"""

import sys
from array import array
from struct import iter_unpack
from typing import Final, TypeAlias

import msgspec
import xxhash
from pydantic import JsonValue

from pointsman_apis.content_parts import MEDIA
from pointsman_apis.fields import Document
from pointsman_apis.requests import AROUND, StructuredBody, written
from pointsman_contracts.message import Blob

BYTES_PER_TOKEN: Final = 4
"""Bytes of UTF-8 text per token; 3.5 to 4.5 for English and code with current vocabularies. Token ids take four
bytes."""
MEDIA_TOKENS: Final = 1024
"""Tokens counted for one image, clip or file: about a 1024 x 1024 image in the vision encoders of current open
models."""

MOST_BLOCKS: Final = 4096
"""Most blocks of a prompt; a longer prompt is described by its first ones."""

_BIG_ENDIAN: Final = sys.byteorder == "big"
_digest: Final = xxhash.xxh3_64_intdigest
_HOLDERS: Final = ("content", "output")
"""Members that hold parts: of messages, and of what tools returned."""
Prompts: TypeAlias = dict[tuple[int, int, int], tuple[bytes, bytes]]
"""The last prompt of a conversation and the hashes of its blocks, see `EarlierBody.prompts`."""
_STEP: Final = 64
_FILLER: Final = MEDIA_TOKENS * BYTES_PER_TOKEN // 32


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """The prompt, ready to be cut into blocks."""

    stream: bytes
    """`BYTES_PER_TOKEN` bytes to a token; empty when the API keeps no prefix."""
    tokens: int
    exact: bool = False
    added: bool = False
    """Whether only what it adds to the conversation's last prompt was rendered and tokenized."""


def prompt_of(body: StructuredBody) -> Prompt:
    """The prompt of a request. Raises Refusal 400 for one that nests too deep."""
    view = body.view
    messages, head = view.messages, view.head
    if messages is None:
        prompt = _texts(view.prompts or [""], keeps_prefix=body.api.keeps_prefix)
        return prompt if not body.media else _with_media(prompt, len(body.media))
    if body.kept is not None and body.kept.parts is not None:
        stream = body.kept.parts.prompt
        return Prompt(stream if body.api.keeps_prefix else b"", -(-len(stream) // BYTES_PER_TOKEN))
    if body.media:
        messages = [_without_media(message) for message in messages]
    # Without the closing bracket, the next turn's stream begins with this one.
    stream = written(messages)[AROUND : -AROUND - 1]
    if head and head.count(None) < len(head):
        stream = written(head)[AROUND:-AROUND] + stream
    return Prompt(stream if body.api.keeps_prefix else b"", -(-len(stream) // BYTES_PER_TOKEN))


def next_message(role: str, text: str) -> bytes:
    """The bytes by which a message of this text continues the stream of a chat, as most clients write it. Raises
    Refusal."""
    return b"," + written({"role": role, "content": text})[AROUND:-AROUND]


def _with_media(prompt: Prompt, media: int) -> Prompt:
    """A prompt of texts beside which the body has `media` images, clips or files."""
    return Prompt(prompt.stream, prompt.tokens + media * MEDIA_TOKENS)


def _without_media(said: Document, results: bool = True) -> Document:
    """A message with every image, clip and file replaced by its fingerprint, repeated to the size it counts for; those
    among the `results` of tools too, which are parts inside its parts."""
    replaced: Document = {}
    for name in _HOLDERS:
        held = said.get(name)
        if isinstance(held, list):
            replaced[name] = [_fingerprint(part, results) for part in held]
        elif isinstance(held, dict):
            replaced[name] = _fingerprint(held, results)
    return {**said, **replaced} if replaced else said


def _fingerprint(part: JsonValue, results: bool) -> JsonValue:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        return part
    if kind not in MEDIA:
        return _without_media(part, results=False) if results else part
    return xxhash.xxh3_128_hexdigest(memoryview(written(part))[AROUND:-AROUND]) * _FILLER


def _texts(prompts: list[str | list[int]], *, keeps_prefix: bool) -> Prompt:
    """Several prompts in one request are scheduled together; the blocks are those of the first."""
    first = prompts[0]
    stream = first.encode() if isinstance(first, str) else _little_endian(first)
    exact = all(isinstance(prompt, list) for prompt in prompts)
    tokens = sum(len(prompt) if isinstance(prompt, list) else _estimate(len(prompt.encode())) for prompt in prompts)
    return Prompt(stream if keeps_prefix else b"", tokens, exact)


def _estimate(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _little_endian(tokens: list[int]) -> bytes:
    return array("I", tokens).tobytes()


def chain_grown(stream: bytes, block_bytes: int, root: int, limit: int, prompts: Prompts) -> Blob:
    """The hashes that `chain` gives. `prompts`: the last prompt of the conversation and its hashes, by the other
    arguments; blocks that both prompts begin with aren't hashed again."""
    key = block_bytes, root, limit
    known = prompts.get(key)
    common = b"" if known is None else known[1][: _count_equal(known[0], stream) // block_bytes * 8]
    done = len(common) // 8
    if done:
        root = int.from_bytes(common[-8:], "little")
    blocks = Blob(common + chain(stream[done * block_bytes :], block_bytes, root, limit - done))
    prompts[key] = stream, blocks
    return blocks


def _count_equal(former: bytes, stream: bytes) -> int:
    """Bytes that two texts begin with alike, rounded down to `_STEP`."""
    low, high = 0, min(len(former), len(stream)) // _STEP
    while low < high:
        middle = (low + high + 1) // 2
        if stream.startswith(former[low * _STEP : middle * _STEP], low * _STEP):
            low = middle
        else:
            high = middle - 1
    return low * _STEP


def chain(stream: bytes, block_bytes: int, root: int, limit: int = MOST_BLOCKS) -> Blob:
    """Chained hashes of the full blocks of `stream`, 8 bytes each, little-endian: equal hashes mean equal prefixes.
    `root` is the hash before the first; at most `limit` blocks are described.

    Each hash is XXH3-64 of its block, seeded with the hash before it, so it stands for everything from the start of the
    prompt (the chain of NVIDIA Dynamo's router, with the parent as the seed). XXH3 isn't keyed: a client that chooses
    its prompts can make collisions. Therefore the chain of a tenant starts from the tenant's own salt.
    """
    parent = root
    full = stream[: min(len(stream) // block_bytes, limit) * block_bytes]
    hashes = array("Q", [parent := _digest(block, parent) for (block,) in iter_unpack(f"{block_bytes}s", full)])
    if _BIG_ENDIAN:
        hashes.byteswap()
    return Blob(hashes.tobytes())
