"""API keys: the facts kept of each (never the key itself), and how to find one."""

import hmac
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Annotated, Final

from msgspec.structs import asdict
from pydantic import BeforeValidator, Field, JsonValue

from pointsman_contracts.api_key import ApiKey as StoredKey
from pointsman_core.config.service_level import ServiceLevel
from pointsman_preprocessor.domain.identities import Grant, SenderPermissions

_PREFIX: Final = 16


class KeyTerms(SenderPermissions):
    """What the requests of an API key may do, and how they are served."""

    limits: dict[str, str | float | tuple[str, ...]] = Field(default_factory=dict[str, str | float | tuple[str, ...]])
    """Name → value, for limits that take their value from the identity."""
    slo: ServiceLevel | None = None
    """The service level of its requests, before that of the profile and the model."""


class KeyFacts(KeyTerms):
    """An API key's owner and terms."""

    id: str = Field(default="", pattern=r"^[A-Za-z0-9._@-]{0,100}$")
    """Name of the key, in trails and logs."""
    tenant: str = Field(min_length=1)
    subject: str = ""
    """Default: the key's `id`."""
    expires: datetime | None = None
    """With a time zone; from then on the key is rejected."""
    disabled: bool = False
    note: str = ""
    """For the operator."""

    def make_grant(self) -> Grant:
        """The identity that the key proves."""
        limits: dict[str, JsonValue] = {
            name: list(value) if isinstance(value, tuple) else value for name, value in self.limits.items()
        }
        return Grant(
            tenant=self.tenant,
            permissions=self,
            subject=self.subject or self.id,
            limits=limits,
            key=self.id,
            slo=self.slo,
        )

    def find_problem(self, now_ms: int) -> str | None:
        """Why the key isn't valid now, for the client; None when it is."""
        if self.disabled:
            return "The API key is disabled."
        if self.expires is not None and self.expires.timestamp() * 1000 <= now_ms:
            return "The API key has expired."
        return None


class ConfiguredKey(KeyFacts):
    """A key in the configuration."""

    sha256: Annotated[str, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)] = Field(
        pattern=r"^(?:sha256:)?[0-9a-f]{64}$"
    )
    """SHA-256 of the key: `printf %s KEY | sha256sum`."""

    @property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return self.sha256.removeprefix("sha256:")


class KeyStore(ABC):
    """Keys that are stored beside the configuration."""

    @abstractmethod
    def follow_keys(self) -> None:
        """Keep the keys at hand from now on."""

    @abstractmethod
    def explain_missing(self) -> str | None:
        """Why the keys aren't known yet; None when they are."""

    @abstractmethod
    def find_key(self, digest: str) -> KeyFacts | None: ...

    @abstractmethod
    def list_named(self, name: str) -> Collection[KeyFacts]: ...


class KeyTable:
    """Keys by digest. A comparison with a digest takes the same time whether it matches or not."""

    def __init__(self, keys: Iterable[tuple[str, KeyFacts]] = ()) -> None:
        self._rows: Final[dict[str, list[tuple[str, KeyFacts]]]] = {}
        self._named: Final[dict[str, dict[str, KeyFacts]]] = {}
        """By name and digest."""
        for digest, facts in keys:
            self.store_key(digest, facts)

    def store_key(self, digest: str, facts: KeyFacts) -> None:
        """Add a key, or replace the one with this digest."""
        self.remove(digest)
        self._rows.setdefault(digest[:_PREFIX], []).append((digest, facts))
        self._named.setdefault(facts.id, {})[digest] = facts

    def remove(self, digest: str) -> None:
        before = self.find_key(digest)
        if before is not None:
            del self._named[before.id][digest]
        rows = [row for row in self._rows.get(digest[:_PREFIX], ()) if row[0] != digest]
        if rows:
            self._rows[digest[:_PREFIX]] = rows
        else:
            self._rows.pop(digest[:_PREFIX], None)

    def find_key(self, digest: str) -> KeyFacts | None:
        """The key with this digest. The prefix that is looked up is of a hash, so its timing reveals nothing about the
        key."""
        found: KeyFacts | None = None
        for known, facts in self._rows.get(digest[:_PREFIX], ()):
            if hmac.compare_digest(known, digest):
                found = facts
        return found

    def list_named(self, name: str) -> Collection[KeyFacts]:
        return self._named.get(name, {}).values()

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))


def stored_key(data: bytes) -> KeyFacts:
    """An API key as stored beside the configuration. Raises ValueError."""
    key = StoredKey.decode(data)
    facts = {name: value for name, value in asdict(key).items() if name not in ("expires_ms", "created_ms")}
    expires = None if key.expires_ms is None else datetime.fromtimestamp(key.expires_ms / 1000, UTC)
    return KeyFacts.model_validate({**facts, "expires": expires})
