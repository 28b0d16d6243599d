"""The TLS context of a client, made of files that may be renewed while it runs."""

import os
import ssl
from functools import lru_cache
from pathlib import Path
from typing import Final

from pointsman_runtime.telling.logs import Log

_log = Log("tls")


class TlsFiles:
    """Files of a client's TLS; None for a CA means that of the system."""

    def __init__(
        self, ca: Path | None, certificate: Path | None = None, key: Path | None = None, *, verify: bool = True
    ) -> None:
        self._ca: Final = ca
        self._certificate: Final = certificate
        self._key: Final = key
        self._verify: Final = verify
        self._stamp: tuple[int, ...] | None = None
        self._context: ssl.SSLContext | None = None
        self._unusable = False

    def context(self, unusable: str) -> ssl.SSLContext:
        """The context for a new connection, made again once a file was renewed. While a renewed file can't be used, or
        is gone, the context of the ones before stays, and the event `unusable` is logged once. Raises OSError
        (ssl.SSLError among them) where there was none."""
        try:
            stamp = tuple([file.stat().st_mtime_ns for file in (self._ca, self._certificate, self._key) if file])
            if self._context is None or stamp != self._stamp:
                self._context, self._stamp = self._make_context(), stamp
        except OSError as error:
            if self._context is None:
                raise
            if not self._unusable:
                self._unusable = True
                _log.error(unusable, reason=words_of(error), hint="new connections use the files as they were before")
        else:
            self._unusable = False
        return self._context

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._ca)
        if self._certificate is not None:
            context.load_cert_chain(self._certificate, self._key)
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@lru_cache(maxsize=64)
def tls_files(ca: Path | None, certificate: Path | None, key: Path | None = None, *, verify: bool = True) -> TlsFiles:
    """The same files for all that name the same places."""
    return TlsFiles(ca, certificate, key, verify=verify)


def words_of(error: OSError) -> str:
    """The reason of an error of a socket, a file or TLS, without OpenSSL's numbers and places."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        # Of text that isn't PEM at all it has no reason.
        return (error.reason or "the file is not PEM").replace("_", " ").lower()
    return os.strerror(error.errno) if error.errno is not None else str(error) or type(error).__name__
