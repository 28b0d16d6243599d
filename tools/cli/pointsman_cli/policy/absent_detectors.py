"""Answers to the guard's detectors in a trial run without a network: every outside call fails as DetectorFailed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pydantic import JsonValue

from pointsman_plugins.guarding import DetectorFailed, TextEmbedder


class AbsentOutside:
    """The outside of detectors in a trial run: every call fails."""

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
        del document, credential, headers, timeout_s, private
        raise DetectorFailed(f"{url} isn't asked here")

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def embedder(self, folder: str) -> TextEmbedder:
        return _NoModel(folder)


class _NoModel:
    """Embedding models are on the guard's disk."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    async def embed(self, texts: Sequence[str]) -> NoReturn:
        """See `TextEmbedder.embed`."""
        del texts
        raise DetectorFailed(f"{self._folder} isn't loaded here")
