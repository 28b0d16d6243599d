"""Sends requests of a service through the gateway's own door, as any client does."""

import io
from collections.abc import Mapping
from typing import Final

import aiohttp

from pointsman_core.door_answer import DoorAnswer
from pointsman_hosting import outbound
from pointsman_runtime.reaching.http_names import http_connector

_CONNECT_S: Final = 5.0


class OwnDoor:
    """The door of the gateway. `largest`: bytes of an answer that are read."""

    def __init__(self, url: str, largest: int, timeout_s: float | None = None) -> None:
        self._url: Final = url.rstrip("/")
        self._largest: Final = largest
        self._timeout: Final = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        self._session: aiohttp.ClientSession | None = None

    async def send_request(
        self, path: str, body: bytes, token: str, request_id: str, headers: Mapping[str, str] | None = None
    ) -> DoorAnswer:
        """Have a request answered with the identity of `token`; `headers` are further ones. Never raises for a gateway
        that doesn't answer."""
        session = self._session
        if session is None:
            session = self._session = aiohttp.ClientSession(connector=http_connector(limit=0))
        try:
            async with session.post(
                f"{self._url}{path}",
                # Of a large body in bytes, aiohttp writes all at once.
                data=io.BytesIO(body),
                headers={
                    "authorization": f"Bearer {token}",
                    "content-type": "application/json",
                    "x-request-id": request_id,
                    **(headers or {}),
                },
                timeout=self._timeout,
                allow_redirects=False,
            ) as answer:
                data = bytearray()
                async for piece in answer.content.iter_any():
                    data += piece
                    if len(data) > self._largest:
                        problem = f"the answer has more than {self._largest} bytes"
                        return DoorAnswer(0, b"", failure="oversized", problem=problem)
                return DoorAnswer(
                    status=answer.status,
                    body=bytes(data),
                    request_id=answer.headers.get("x-request-id", request_id),
                    retry_after_s=_seconds(answer.headers.get("retry-after")),
                    limited=answer.headers.get("x-pointsman-dropped-reason", "").startswith("limit "),
                )
        except aiohttp.ClientConnectorError as error:
            return DoorAnswer(0, b"", failure="unsent", problem=outbound.reason_of(error))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = "late" if isinstance(error, TimeoutError) else "failed"
            return DoorAnswer(0, b"", failure=failure, problem=outbound.reason_of(error))

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
