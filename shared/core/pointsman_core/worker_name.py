"""The default name of a worker."""

from urllib.parse import urlsplit


def worker_name(url: str) -> str:
    """Host and port of its base URL."""
    parts = urlsplit(url)
    host = parts.hostname or url
    return f"{host}:{parts.port}" if parts.port else host
