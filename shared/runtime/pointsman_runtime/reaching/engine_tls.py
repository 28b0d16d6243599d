"""TLS contexts for connections to engines, by the settings of their pool."""

import ssl
from functools import lru_cache
from pathlib import Path
from typing import Final

from pointsman_core.config.engine_tls import EngineTls
from pointsman_runtime.telling.logs import Log

_in_use: Final[dict[tuple[str | None, str | None, bool], ssl.SSLContext]] = {}
"""The last context of each pool's settings."""
_unusable: Final[set[tuple[str | None, str | None, bool]]] = set()
"""Settings whose files can't be used as they are now."""

_log = Log("tls")


def engine_context(tls: EngineTls | None) -> ssl.SSLContext:
    """The context for new connections; None: as the system does it. While a file can't be used that was renewed, or is
    gone, the context of the one before stays. Raises OSError (ssl.SSLError among them) where there was none."""
    if tls is None:
        return _context(None, None, True, ())
    place = tls.ca, tls.client_certificate, tls.verify
    try:
        written = tuple([Path(each).stat().st_mtime_ns for each in place[:2] if each is not None])
        context = _context(*place, written)
    except OSError as error:
        before = _in_use.get(place)
        if before is None:
            raise
        if place not in _unusable:
            _unusable.add(place)
            hint = "new connections use the files as they were before"
            _log.error("engine_tls_unusable", reason=error.strerror or type(error).__name__, hint=hint)
        return before
    _in_use[place] = context
    _unusable.discard(place)
    return context


@lru_cache(maxsize=64)
def _context(ca: str | None, certificate: str | None, verify: bool, written: tuple[int, ...]) -> ssl.SSLContext:
    """`written`: when the files were; after that a context is made again."""
    del written
    context = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        context.load_cert_chain(certificate)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
