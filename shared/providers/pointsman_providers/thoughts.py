"""A model's signed reasoning on its way through OpenAI's chat, and back to the model that signed it.

Claude refuses a thinking block whose text or signature isn't exactly its own, or that another model signed
(anthropics/anthropic-sdk-python #1598, vybestack/llxprt-code #2335). Chat's answers carry each signed block as an entry
of `reasoning_details`, OpenRouter's form. The entry's id is a seal over model, text and signature: an entry that a
guard, a client or another model changed doesn't match, and isn't sent.
"""

import hashlib
from typing import Final, NamedTuple

from pydantic import JsonValue

_FORMAT: Final = "anthropic-claude-v1"
_PREFIX: Final = "pm-"


class Thought(NamedTuple):
    """One block of signed reasoning."""

    text: str
    signature: str
    """The text's signature; for redacted reasoning its encrypted content."""
    redacted: bool = False

    def detail(self, model: str, index: int) -> dict[str, JsonValue]:
        """The entry of `reasoning_details`. `model`: the provider's name of it."""
        entry: dict[str, JsonValue] = {"id": _seal(self, model), "format": _FORMAT, "index": index}
        if self.redacted:
            return {"type": "reasoning.encrypted", "data": self.signature, **entry}
        return {"type": "reasoning.text", "text": self.text, "signature": self.signature, **entry}


class ThoughtStream:
    """Puts the pieces of signed reasoning in a stream together."""

    def __init__(self) -> None:
        self._thought = Thought("", "")
        self.count = -1
        """The number of the block that ended last, from 0."""

    def add_text(self, text: str, signature: str) -> None:
        """A piece of a block's text or of its signature."""
        before = self._thought
        self._thought = before._replace(text=before.text + text, signature=before.signature + signature)

    def add_redacted(self, data: str) -> None:
        """A block whose text isn't shown."""
        self._thought = Thought("", data, redacted=True)

    def end_block(self) -> Thought | None:
        """A block has ended; returns it if it is signed."""
        thought, self._thought = self._thought, Thought("", "")
        if not thought.signature:
            return None
        self.count += 1
        return thought


def read_thoughts(details: JsonValue, model: str) -> list[Thought]:
    """The blocks in a message's `reasoning_details` that this model signed."""
    found: list[Thought] = []
    for entry in details if isinstance(details, list) else []:
        match entry:
            case {"type": "reasoning.text", "text": str(text), "signature": str(signature)}:
                thought = Thought(text, signature)
            case {"type": "reasoning.encrypted", "data": str(data)}:
                thought = Thought("", data, redacted=True)
            case _:
                continue
        if entry.get("id") == _seal(thought, model):
            found.append(thought)
    return found


def _seal(thought: Thought, model: str) -> str:
    content = f"{model}\0{thought.text}\0{thought.signature}"
    return _PREFIX + hashlib.sha256(content.encode("utf-8", "replace")).hexdigest()[:24]
