"""URLs in settings: their validity, and how they are shown."""

import ipaddress
from urllib.parse import urlsplit


def without_login(server: str) -> str:
    """A server's URL as it may be shown."""
    scheme, separator, rest = server.partition("://") if "://" in server else ("", "", server)
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def is_loopback(host: str) -> bool:
    """Whether a name or address is this host's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def has_host(url: str) -> bool:
    """Whether a URL names a destination."""
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:  # brackets without end
        return False


def servers(url: str) -> list[str]:
    """Those of a setting, which separates them by commas."""
    return [server.strip() for server in url.split(",") if server.strip()]


def problem_of(server: str) -> str | None:
    """Why this is no NATS server's URL; None when it is one."""
    if not server.startswith(("nats://", "tls://")):
        return "a server's URL must begin with nats:// or tls://"
    if not has_host(server):
        return "no host; e.g. nats://127.0.0.1:4222"
    try:
        port = urlsplit(server).port
    except ValueError:
        port = 0
    return "the port must be a number from 1 to 65535" if port == 0 else None
