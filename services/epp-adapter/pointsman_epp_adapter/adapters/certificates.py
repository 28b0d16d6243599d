"""TLS files that may be renewed while the server runs."""

from pathlib import Path
from typing import cast

import grpc

from pointsman_runtime.logs import Log

_log = Log("tls")


class CertificateFiles:
    """Read anew for the next connection once one of them has changed."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None) -> None:
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._stamp: tuple[int, ...] = ()

    def credentials(self) -> grpc.ServerCredentials:
        """For the server. Raises OSError when a file can't be read."""
        self._stamp = self._stamps()
        return grpc.dynamic_ssl_server_credentials(self._read(), self._renewed, self._client_ca is not None)

    def _renewed(self) -> grpc.ServerCertificateConfiguration:
        # None means no change, which the type stubs don't know.
        return cast("grpc.ServerCertificateConfiguration", self._changed())

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return None
            read = self._read()
        except OSError as error:
            _log.error("certificate_unreadable", error)
            return None
        self._stamp = stamp
        _log.info("certificate_renewed", file=str(self._cert))
        return read

    def _stamps(self) -> tuple[int, ...]:
        files = (self._cert, self._key, *(() if self._client_ca is None else (self._client_ca,)))
        return tuple(file.stat().st_mtime_ns for file in files)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        pair = (self._key.read_bytes(), self._cert.read_bytes())
        return grpc.ssl_server_certificate_configuration(
            [pair], self._client_ca.read_bytes() if self._client_ca else None
        )
