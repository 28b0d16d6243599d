"""Sends the requests of lines through the gateway's own door, as any client does."""

from typing import Final

import aiohttp

from pointsman_batch.domain.verdict import LineAnswer
from pointsman_hosting import outbound

LARGEST: Final = 64 * 2**20
"""Most bytes of an answer."""
_CONNECT_S: Final = 5.0


class Gateway:
    """The door of the gateway."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url: Final = url.rstrip("/")
        self._timeout: Final = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S)
        self._session: aiohttp.ClientSession | None = None

    async def send_line(self, endpoint: str, body: bytes, token: str, request_id: str) -> LineAnswer:
        """Have one request answered. Never raises for a gateway that doesn't answer."""
        session = self._session
        if session is None:
            session = self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=self._timeout, auto_decompress=True
            )
        headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
            "x-request-id": request_id,
        }
        try:
            async with session.post(
                f"{self._url}{endpoint}", data=body, headers=headers, allow_redirects=False
            ) as answer:
                data = await answer.read()
                if len(data) > LARGEST:
                    return LineAnswer(0, b"", problem=f"the answer has more than {LARGEST} bytes")
                return LineAnswer(
                    status=answer.status,
                    body=data,
                    request_id=answer.headers.get("x-request-id", request_id),
                    retry_after_s=_seconds(answer.headers.get("retry-after")),
                    limited=answer.headers.get("x-pointsman-dropped-reason", "").startswith("limit "),
                )
        except aiohttp.ClientConnectorError as error:
            return LineAnswer(0, b"", problem=outbound.reason_of(error), sent=False)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return LineAnswer(0, b"", problem=outbound.reason_of(error))

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
