"""TLS contexts for connections to engines, by the settings of their pool."""

import ssl
from functools import lru_cache
from pathlib import Path

from pointsman_core.config.engine_tls import EngineTls


def engine_context(tls: EngineTls | None) -> ssl.SSLContext:
    """The context for new connections; None: as the system does it. Raises OSError (ssl.SSLError among them) for a file
    that can't be used."""
    if tls is None:
        return _context(None, None, True, ())
    files = [path for path in (tls.ca, tls.client_certificate) if path is not None]
    return _context(tls.ca, tls.client_certificate, tls.verify, tuple(Path(each).stat().st_mtime_ns for each in files))


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
