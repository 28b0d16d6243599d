"""References of a configuration to things outside it: secrets and URLs."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator


def _is_a_reference(value: str) -> str:
    place, _, name = value.partition(":")
    if place not in ("env", "file") or not name.strip():
        raise ValueError("write a reference, `env:NAME` or `file:PATH`; secrets don't belong in this file")
    return value


def check_http_url(value: str) -> str:
    """The URL. Raises ValueError for one that isn't an HTTP server's."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{value!r}: the URL must begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL must have no user and no password; use the key `credential` if this section has it")
    if "\\" in value or not value.isprintable() or " " in value:
        raise ValueError("the URL has a space, a backslash or an unprintable character; percent-encode it")
    if not parts.hostname:
        raise ValueError(f"{value!r}: the URL names no host")
    _ = parts.port  # raises ValueError for one that can't be
    return value


SecretReference = Annotated[str, AfterValidator(_is_a_reference)]
"""The place of a secret: `env:NAME` or `file:PATH`."""
HttpUrl = Annotated[str, AfterValidator(check_http_url)]
"""An `http://` or `https://` URL with a host."""
