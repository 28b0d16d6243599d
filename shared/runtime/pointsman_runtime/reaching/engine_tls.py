"""TLS contexts for connections to engines, by the settings of their pool."""

import ssl
from pathlib import Path

from pointsman_core.config.engine_tls import EngineTls
from pointsman_runtime.reaching.tls_files import tls_files


def engine_context(tls: EngineTls | None) -> ssl.SSLContext:
    """The context for new connections (see `TlsFiles.context`); None: as the system does it."""
    if tls is None:
        files = tls_files(None, None)
    else:
        ca, certificate = (None if each is None else Path(each) for each in (tls.ca, tls.client_certificate))
        files = tls_files(ca, certificate, verify=tls.verify)
    return files.context("engine_tls_unusable")
