"""Turns an engine's texts into tokens."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from pointsman_simulator.tokens import Tokens, generate, render_chat, tokenize

BodyField = Callable[[str], object]
"""A field of the request's body; None when absent."""


class Vocabulary:
    """Without a tokenizer: four UTF-8 bytes are a token."""

    def tokenize_chat(self, field: BodyField) -> Tokens:
        """The prompt of a chat. Raises ValueError for one that can't be rendered."""
        messages = cast("Sequence[Mapping[str, object]]", field("messages"))
        return render_chat(messages, field("tools"))

    def tokenize_text(self, text: str, field: BodyField) -> Tokens:
        """The prompt of a completion."""
        del field
        return tokenize(text)

    def make_answer(self, seed: int, count: int) -> tuple[list[str], Tokens]:
        """An answer's words and their tokens, one each."""
        words = generate(seed, count)
        return words, np.frombuffer("".join(words).encode(), dtype="<u4")
