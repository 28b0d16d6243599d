"""Reads tokenizers from disk, each once."""

from pathlib import Path
from typing import Final

from pointsman_core.config import ConfigError, Tokenizer
from pointsman_models.tokenization.failure import NotTokenized
from pointsman_preprocessor.domain.model_tokenizers import ModelTokenizer
from pointsman_runtime.telling.logs import Log

KEPT: Final = 32
"""Most tokenizers that are kept for later revisions; a large vocabulary takes 100 MB."""

_log = Log("tokenizers")


class TokenizerFiles:
    """The tokenizers in use. A later revision with the same section and an unchanged file gets the same tokenizer."""

    def __init__(self, cache_bytes: int) -> None:
        """`cache_bytes` bounds the cache of texts and their tokens, for each tokenizer."""
        self._cache_bytes: Final = cache_bytes
        self._loaded: Final[dict[tuple[str, float], ModelTokenizer]] = {}

    def load_tokenizer(self, section: Tokenizer, path: str) -> ModelTokenizer:
        """Read the tokenizer of the section at `path`. Raises ConfigError when it can't be read."""
        folder = Path(section.path)
        try:
            key = (section.model_dump_json(), (folder / "tokenizer.json").stat().st_mtime)
            found = self._loaded.get(key)
            if found is None:
                found = self._loaded[key] = self._read(section, folder)
                if len(self._loaded) > KEPT:
                    del self._loaded[next(iter(self._loaded))]
                _log.info("tokenizer_loaded", path=section.path)
        except (OSError, ValueError, NotTokenized) as error:
            raise ConfigError([(path, f"the tokenizer can't be used: {error}")]) from error
        return found

    def _read(self, section: Tokenizer, folder: Path) -> ModelTokenizer:
        # The libraries of tokenizers and templates take 0.1 s to load: only configurations that use one load them.
        from pointsman_models.tokenization.prompt_tokenizer import PromptTokenizer, ServedTemplate, read_folder

        served = ServedTemplate(
            template=None if section.chat_template is None else Path(section.chat_template).read_text(encoding="utf-8"),
            content_format=None if section.content_format == "auto" else section.content_format,
            variables=section.chat_template_kwargs,
            trust_requests=section.trust_request_chat_template,
        )
        tokenizer = PromptTokenizer(read_folder(folder), served, self._cache_bytes)
        return ModelTokenizer(section.path, tokenizer, section.max_bytes)
