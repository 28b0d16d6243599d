"""Secrets of providers: looked up by their references, and written into requests only."""

import os
from pathlib import Path

from pointsman_edge.credentials.aws_signature import AwsSigner
from pointsman_edge.credentials.google_token import GoogleTokens
from pointsman_providers.resolve import Resolved
from pointsman_runtime.telling.logs import Log

_log = Log("providers")


class CredentialMissing(Exception):
    """A reference leads to nothing. The message has the reference, never a secret."""


class Credentials:
    """Reads references anew when a file changes; an environment doesn't."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[int, str]] = {}
        self._aws = AwsSigner()
        self._google = GoogleTokens()

    def secret(self, reference: str) -> str:
        """The value of `env:NAME` or `file:PATH`, without surrounding white space. Raises CredentialMissing."""
        kind, _, name = reference.partition(":")
        text = os.environ.get(name, "") if kind == "env" else self._read(name)
        text = text.strip()
        if not text:
            raise CredentialMissing(f"{reference} is empty or missing")
        if kind == "env" and not text.isprintable():
            raise CredentialMissing(f"{reference} has control characters")
        return text

    def log_missing(self, provider: Resolved) -> None:
        """Log each credential of a provider that is missing."""
        for reference in provider.credentials:
            try:
                self.secret(reference)
            except CredentialMissing as missing:
                _log.error("provider_credential_missing", provider=provider.name, reason=str(missing))

    def log_refused(self, provider: Resolved, model: str, status: int) -> None:
        """Log that a provider refuses one of its credentials, by its reference."""
        _log.error(
            "provider_refuses_credential",
            provider=provider.name,
            model=model,
            credential=provider.credential,
            status=status,
        )

    async def add_credential(self, provider: Resolved, url: str, headers: dict[str, str], body: bytes) -> None:
        """Add the provider's credential to `headers` of a POST. Raises CredentialMissing."""
        secret = None if provider.credential is None else self.secret(provider.credential)
        cloud = provider.kind.cloud
        try:
            if cloud == "aws" and (secret is None or AwsSigner.are_keys(secret)):
                await self._aws.sign_post(secret, provider.settings.region or "", url, headers, body)
                return
            if cloud == "google" and (secret is None or GoogleTokens.is_account(secret)):
                secret = await self._google.token(secret)
        except ValueError as error:
            raise CredentialMissing(f"{provider.credential or cloud}: {error}") from None
        if secret is not None:
            name, value = provider.kind.header(secret)
            headers[name] = value

    def _read(self, path: str) -> str:
        try:
            changed = Path(path).stat().st_mtime_ns
            known = self._files.get(path)
            if known is None or known[0] != changed:
                known = self._files[path] = changed, Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CredentialMissing(f"file:{path}: {type(error).__name__}") from None
        return known[1]
