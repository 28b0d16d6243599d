"""Credentials in headers."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_BEARER: Final = "bearer "
LONGEST: Final = 16384
"""Most characters of a credential that are read."""


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of `Authorization: Bearer …`; None without one."""
    value = headers.get("authorization", "")
    if value[: len(_BEARER)].lower() != _BEARER or len(value) > LONGEST:
        return None
    return value[len(_BEARER) :].strip() or None


def presented(headers: Mapping[str, str], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Header (lower-case name) and credential, for each of `names` that has one; of `authorization` a bearer's."""
    for name in names:
        value = bearer(headers) if name == "authorization" else headers.get(name, "").strip()
        if value and len(value) <= LONGEST:
            yield name, value


def digest(credential: str) -> str:
    """SHA-256 in lower-case hexadecimal digits."""
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()
