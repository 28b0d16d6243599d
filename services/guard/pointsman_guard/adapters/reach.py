"""Access to guardians over HTTP, files, and embedding models, for detectors."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import aiohttp
import orjson
from pydantic import JsonValue

from pointsman_hosting import outbound
from pointsman_plugins.guarding import DetectorFailed, TextEmbedder
from pointsman_runtime.configuring.secret_references import ReferenceMissing, read_secret

if TYPE_CHECKING:
    from pointsman_models.embedding.onnx_model import OnnxModel

LARGEST = 2**20
"""Most bytes of an answer that are read."""


class Reach:
    """One session for guardians, and one for those on private addresses, each opened by its first request. Each
    embedding model is loaded once."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._embedders: dict[str, OnnxModel] = {}

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
        """Post a document; see `Outside.post`."""
        session = self._sessions.get(private)
        if session is None:
            connector = outbound.connector(private=private, limit=self._connections)
            session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
            self._sessions[private] = session
        sent = {"content-type": "application/json", **headers}
        if credential is not None:
            try:
                sent["authorization"] = f"Bearer {read_secret(credential)}"
            except ReferenceMissing as missing:
                raise DetectorFailed(f"lacks its credential: {missing}") from None
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with session.post(
                url, data=orjson.dumps(document), headers=sent, timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise DetectorFailed(f"was answered with status {answer.status}")
                body = await answer.content.read(LARGEST)
                while len(body) < LARGEST and (more := await answer.content.read(LARGEST - len(body))):
                    body += more
        except TimeoutError:
            raise DetectorFailed("was too slow") from None
        except aiohttp.ClientError as error:
            raise DetectorFailed(f"can't be reached ({outbound.reason_of(error)})") from error
        try:
            return cast("JsonValue", orjson.loads(body))
        except orjson.JSONDecodeError:
            raise DetectorFailed("gave an answer that isn't JSON") from None

    def read(self, path: str) -> bytes:
        """Read a file; see `Outside.read`."""
        return Path(path).read_bytes()

    def embedder(self, folder: str) -> TextEmbedder:
        """The embedding model; see `Outside.embedder`."""
        try:
            from pointsman_models.embedding.onnx_model import OnnxModel
        except ImportError as error:
            raise ValueError(f"install pointsman-guard[onnx]: {error}") from error
        found = self._embedders.get(folder)
        if found is None:
            found = self._embedders[folder] = OnnxModel(Path(folder))
        return found

    async def close(self) -> None:
        """Close the sessions and stop the models' threads."""
        for embedder in self._embedders.values():
            embedder.close()
        for session in self._sessions.values():
            await session.close()
