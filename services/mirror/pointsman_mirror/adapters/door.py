"""Sends copies through the gateway's own door, as any client sends requests."""

import io
from collections.abc import Mapping
from typing import Final, NamedTuple

import aiohttp
import orjson

LARGEST: Final = 4 * 2**20
"""Bytes of an answer that are read: as many as an edge keeps of the first one."""
_CONNECT_S: Final = 5.0


class CopyAnswer(NamedTuple):
    """The answer to a copy."""

    status: int | None
    """None without an answer."""
    body: bytes = b""
    retry_after_s: float | None = None
    failure: str = ""
    """`failed`, `late` or `oversized` when it isn't whole."""
    reason: str = ""

    @property
    def code(self) -> str:
        """The code of an error; empty where it has none."""
        try:
            document = orjson.loads(self.body)
            return str(document["error"]["code"] or "")
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return ""


class GatewayDoor:
    """The door of the gateway."""

    def __init__(self, url: str) -> None:
        self._url: Final = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def send_copy(self, path: str, body: bytes, headers: Mapping[str, str], within_s: float) -> CopyAnswer:
        """Have a copy answered. Never raises for a gateway that doesn't answer."""
        session = self._session
        if session is None:
            session = self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        status: int | None = None
        pieces: list[bytes] = []
        size = 0

        def found(failure: str = "", reason: str = "", retry_after_s: float | None = None) -> CopyAnswer:
            return CopyAnswer(
                status,
                body=b"".join(pieces),
                retry_after_s=retry_after_s,
                failure=failure,
                reason=reason,
            )

        timeout = aiohttp.ClientTimeout(total=within_s, sock_connect=_CONNECT_S)
        try:
            async with session.post(
                f"{self._url}{path}",
                # Of a large body in bytes, aiohttp writes all at once.
                data=io.BytesIO(body),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                status = answer.status
                async for piece in answer.content.iter_any():
                    size += len(piece)
                    if size > LARGEST:
                        return found("oversized", f"more than {LARGEST} bytes")
                    pieces.append(piece)
                return found(retry_after_s=_seconds(answer.headers.get("retry-after")))
        except TimeoutError:
            return found("late", f"no whole answer within {within_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return found("failed", type(error).__name__)

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
