"""The vocabulary of an engine with a real tokenizer and its chat template."""

from pathlib import Path
from typing import Final

import numpy as np

from pointsman_models.tokenization.failure import NotTokenized
from pointsman_models.tokenization.prompt_tokenizer import PromptTokenizer, read_folder
from pointsman_simulator.tokens import WORDS, Tokens, generate
from pointsman_simulator.vocabulary import BodyField, Vocabulary


class TokenizerVocabulary(Vocabulary):
    """A real tokenizer and its chat template."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError when the folder can't be read."""
        try:
            self._tokenizer: Final = PromptTokenizer(read_folder(folder))
        except NotTokenized as error:
            raise ValueError(str(error)) from None
        ids = {word: _tokens(self._tokenizer.encoder.encode_text(word)) for word in WORDS}
        whole = {word: int(found[0]) for word, found in ids.items() if len(found) == 1}
        # Words of one token come back as that token in the next turn's prompt.
        self._ids: Final = whole or {word: int(found[0]) for word, found in ids.items()}

    def tokenize_chat(self, field: BodyField) -> Tokens:
        try:
            return _tokens(self._tokenizer.tokenize_chat(field))
        except NotTokenized as error:
            raise ValueError(str(error)) from None

    def tokenize_text(self, text: str, field: BodyField) -> Tokens:
        try:
            return _tokens(self._tokenizer.tokenize_completion(text, field))
        except NotTokenized as error:
            raise ValueError(str(error)) from None

    def make_answer(self, seed: int, count: int) -> tuple[list[str], Tokens]:
        words = generate(seed, count, tuple(self._ids))
        return words, np.array([self._ids[word] for word in words], dtype="<u4")


def _tokens(packed: bytes) -> Tokens:
    return np.frombuffer(packed, dtype="<u4")
