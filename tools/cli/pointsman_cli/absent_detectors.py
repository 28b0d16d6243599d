"""What the guard's detectors ask, where nothing is asked: a detector that needs it says that it can't judge."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import JsonValue

from pointsman_plugins.guarding import DetectorFailed, TextEmbedder


class AbsentOutside:
    """Detectors that ask somebody get no answer here."""

    async def post(
        self,
        url: str,
        document: JsonValue,
        *,
        credential: str | None,
        headers: Mapping[str, str],
        timeout_s: float,
        private: bool,
    ) -> JsonValue:
        """As `Outside.post`."""
        del document, credential, headers, timeout_s, private
        raise DetectorFailed(f"{url} isn't asked here")

    def read(self, path: str) -> bytes:
        """As `Outside.read`."""
        return Path(path).read_bytes()

    def embedder(self, folder: str) -> TextEmbedder:
        """As `Outside.embedder`."""
        return _NoModel(folder)


class _NoModel:
    """Embedding models are on the guard's disk."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def embed(self, texts: Sequence[str]) -> NoReturn:
        """As `TextEmbedder.embed`."""
        del texts
        raise DetectorFailed(f"{self._folder} isn't loaded here")
