"""How an engine's texts become tokens."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import numpy as np

from pointsman_simulator.tokens import WORDS, Tokens, generate, render_chat, tokenize
from pointsman_tokenization.failure import NotTokenized
from pointsman_tokenization.prompt_tokenizer import PromptTokenizer, read_folder

BodyField = Callable[[str], object]
"""A field of the request's body; None when absent."""


class Vocabulary:
    """Without a tokenizer: four UTF-8 bytes are a token."""

    def chat(self, field: BodyField) -> Tokens:
        """The prompt of a chat. Raises ValueError for one that can't be rendered."""
        messages = cast("Sequence[Mapping[str, object]]", field("messages"))
        return render_chat(messages, field("tools"))

    def text(self, text: str, field: BodyField) -> Tokens:
        """The prompt of a completion."""
        del field
        return tokenize(text)

    def answer(self, seed: int, count: int) -> tuple[list[str], Tokens]:
        """An answer's words and their tokens, one each."""
        words = generate(seed, count)
        return words, np.frombuffer("".join(words).encode(), dtype="<u4")


class TokenizerVocabulary(Vocabulary):
    """A real tokenizer and its chat template."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError when the folder can't be read."""
        try:
            self._tokenizer: Final = PromptTokenizer(read_folder(folder))
        except NotTokenized as error:
            raise ValueError(str(error)) from None
        ids = {word: _tokens(self._tokenizer.encoder.encode(word)) for word in WORDS}
        whole = {word: int(found[0]) for word, found in ids.items() if len(found) == 1}
        # Words of one token come back as that token in the next turn's prompt.
        self._ids: Final = whole or {word: int(found[0]) for word, found in ids.items()}

    def chat(self, field: BodyField) -> Tokens:
        try:
            return _tokens(self._tokenizer.chat(field))
        except NotTokenized as error:
            raise ValueError(str(error)) from None

    def text(self, text: str, field: BodyField) -> Tokens:
        try:
            return _tokens(self._tokenizer.completion(text, field))
        except NotTokenized as error:
            raise ValueError(str(error)) from None

    def answer(self, seed: int, count: int) -> tuple[list[str], Tokens]:
        words = generate(seed, count, tuple(self._ids))
        return words, np.array([self._ids[word] for word in words], dtype="<u4")


def _tokens(packed: bytes) -> Tokens:
    return np.frombuffer(packed, dtype="<u4")
