"""URLs of engines: HTTP over TCP, or over a Unix socket of the same host."""

from functools import lru_cache
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator

from pointsman_core.references import check_http_url

SCHEME: Final = "unix:"
LONGEST_SOCKET: Final = 107
"""Bytes of a socket's path: `sockaddr_un` of Linux has 108, and the last one is 0 (unix(7))."""


class UnixAddress(NamedTuple):
    """Where a `unix:` URL leads."""

    socket: str
    """Path of the socket."""
    path: str
    """Put before a request's own path; empty without one."""

    @property
    def http_url(self) -> str:
        """The base URL for a client whose connections lead to the socket."""
        return f"http://localhost{self.path}"


@lru_cache(maxsize=2048)
def unix_address(url: str) -> UnixAddress | None:
    """The address of `unix:/run/vllm.sock` or `unix:/run/vllm.sock:/base`; None for a URL of another scheme. Raises
    ValueError for one that can't be used."""
    if not url.startswith(SCHEME):
        return None
    socket, _, path = url.removeprefix(SCHEME).partition(":")
    path = path.rstrip("/")
    if not socket.startswith("/") or socket.endswith("/"):
        raise ValueError(f"{url!r}: write unix: and the absolute path of a socket, e.g. unix:/run/vllm.sock")
    if len(socket.encode()) > LONGEST_SOCKET:
        raise ValueError(f"{url!r}: the path of a socket has at most {LONGEST_SOCKET} bytes")
    if (path and not path.startswith("/")) or "?" in path or "#" in path:
        raise ValueError(f"{url!r}: behind the socket comes nothing, or : and a path, e.g. {SCHEME}{socket}:/base")
    if not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("the URL has a space, a backslash or an unprintable character")
    return UnixAddress(socket, path)


def check_engine_url(url: str) -> str:
    """The URL. Raises ValueError for one that can't be an engine's."""
    return check_http_url(url) if unix_address(url) is None else url


def check_metrics_url(url: str | None, metrics_url: str | None) -> None:
    """Raises ValueError where the engine, its metrics or both are behind a Unix socket, but not behind the same one."""
    if metrics_url is None:
        return
    engine, metrics = unix_address(url or ""), unix_address(metrics_url)
    if (engine and engine.socket) != (metrics and metrics.socket):
        raise ValueError("metrics_url: an engine behind a Unix socket has its metrics behind the same one")


EngineUrl = Annotated[str, AfterValidator(check_engine_url)]
"""An `http://` or `https://` URL with a host, or `unix:/run/vllm.sock`."""
