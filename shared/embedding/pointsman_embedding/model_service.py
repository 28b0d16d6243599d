"""A model behind HTTP that is asked in JSON."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp
import orjson

from pointsman_hosting import outbound
from pointsman_runtime.configuring.secret_references import ReferenceMissing, read_secret


class ServiceSilent(Exception):
    """The service can't be reached, or doesn't answer."""

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(what, detail)
        self.what: Final = what
        self.detail: Final = detail


class ServiceAnswer(NamedTuple):
    """The status and the body of an answer."""

    status: int
    body: bytes


class ModelService:
    """One URL. Texts are neither kept nor logged; redirects aren't followed."""

    def __init__(self, what: str, url: str, credential: str | None, timeout_s: float, *, private: bool) -> None:
        """`what`: its name in errors. `private`: `url` may lead to a private address."""
        self._what: Final = what
        self._url: Final = url
        self._credential: Final = credential
        self._timeout: Final = aiohttp.ClientTimeout(total=timeout_s)
        self._private: Final = private
        self._session: aiohttp.ClientSession | None = None

    async def post_document(self, document: Mapping[str, object]) -> ServiceAnswer:
        """Post a document. Raises ServiceSilent."""
        headers = {"content-type": "application/json"}
        if self._credential is not None:
            try:
                headers["authorization"] = f"Bearer {read_secret(self._credential)}"
            except ReferenceMissing as missing:
                raise ServiceSilent(str(missing)) from missing
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=outbound.connector(private=self._private), timeout=self._timeout
            )
        body = orjson.dumps(document)
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                return ServiceAnswer(response.status, await response.read())
        except (TimeoutError, aiohttp.ClientError) as error:
            raise ServiceSilent(f"{self._what} doesn't answer", outbound.reason_of(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
