"""The default name of a worker."""

from urllib.parse import urlsplit

from pointsman_core.engine_url import unix_address


def worker_name(url: str) -> str:
    """Host and port of its base URL; for a Unix socket its path, with hyphens."""
    unix = unix_address(url)
    if unix is not None:
        return f"{unix.socket}{unix.path}".strip("/").replace("/", "-")
    parts = urlsplit(url)
    host = parts.hostname or url
    return f"{host}:{parts.port}" if parts.port else host
