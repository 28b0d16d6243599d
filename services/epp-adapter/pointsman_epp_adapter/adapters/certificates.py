"""TLS files that may be renewed while the server runs."""

import ssl
from pathlib import Path

from pointsman_runtime.telling.logs import Log

_log = Log("tls")


class CertificateFiles:
    """Read anew for the next connection once one of them has changed."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._stamp: tuple[int, ...] = ()
        self._current: ssl.SSLContext | None = None

    def build_context(self) -> ssl.SSLContext:
        """For the server. Raises OSError when a file can't be read."""
        self._stamp = self._stamps()
        first = self._read()
        # Called at the beginning of every handshake, with or without a name.
        first.sni_callback = self._choose
        return first

    def _choose(self, connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        del name, first  # whatever name it calls us by
        self._renew()
        if self._current is not None:
            connection.context = self._current

    def _renew(self) -> None:
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return
            self._current = self._read()
        except OSError as error:
            _log.error("certificate_unreadable", error)
            return
        self._stamp = stamp
        _log.info("certificate_renewed", file=str(self._cert))

    def _stamps(self) -> tuple[int, ...]:
        files = (self._cert, self._key, *(() if self._client_ca is None else (self._client_ca,)))
        return tuple(file.stat().st_mtime_ns for file in files)

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(self._cert, self._key)
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._client_ca)
        return context
