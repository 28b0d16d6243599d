"""`api-key-auth`: identifies clients by their API keys. Only hashes of the keys are kept."""

from typing import Final

from pydantic import Field, JsonValue, field_validator

from pointsman_contracts.batch import KEY_REVOKED
from pointsman_core.config import Config
from pointsman_core.plugins import PluginError
from pointsman_core.refusal import Refusal
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import IDENTITY, Incoming, Ports, RequestProcessor, Unavailable
from pointsman_preprocessor.domain.admission import CREDENTIAL_HEADERS, unauthorized
from pointsman_preprocessor.domain.api_keys import ConfiguredKey, KeyFacts, KeyStore, KeyTable
from pointsman_preprocessor.domain.credentials import digest, presented
from pointsman_preprocessor.domain.identities import ModelGroups, identity_of

_KEPT: Final = 8192
"""Most keys whose identity is cached."""


class ApiKeyAuthParams(Params):
    """The keys, and the headers that clients send them in."""

    keys: tuple[ConfiguredKey, ...] = ()
    """Hashes of keys, and their owners."""
    stored: bool = False
    """Also accept the keys that `pointsman keys create` stores beside the configuration; changes count at once."""
    headers: tuple[str, ...] = Field(default=CREDENTIAL_HEADERS, min_length=1)
    """Headers that may hold a key; for `authorization`, the part after `Bearer`."""
    forward: bool = False
    """Leave the header to the engine. The edge forwards `authorization`, `x-api-key` and `api-key` only when it is
    configured to as well."""

    @field_validator("keys")
    @classmethod
    def _each_once(cls, value: tuple[ConfiguredKey, ...]) -> tuple[ConfiguredKey, ...]:
        known: set[str] = set()
        for position, key in enumerate(value):
            if key.digest in known:
                raise ValueError(f"the key at {position} has the hash of one before it")
            known.add(key.digest)
        return value

    @field_validator("headers")
    @classmethod
    def _lower(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.lower() for name in value)


class ApiKeyAuth(RequestProcessor[ApiKeyAuthParams]):
    """Produces the identity of a known key. An unknown key is left to the processors after it, and rejected with 401
    when none of them knows it."""

    type_name = "api-key-auth"
    produces = (IDENTITY,)
    authenticates = True

    def setup(self) -> None:
        self.credentials = self.params.headers
        self._table = KeyTable((key.digest, key) for key in self.params.keys)
        self._store: KeyStore | None = None
        self._groups = ModelGroups()
        self._identities: dict[str, tuple[KeyFacts, dict[str, JsonValue]]] = {}

    def bind(self, config: Config) -> None:
        self._groups = ModelGroups(config)
        for position, key in enumerate(self.params.keys):
            try:
                identity_of(key.make_grant(), self.name, self._groups)
            except ValueError as error:
                raise PluginError(f"{self.name!r}: {error}", ("keys", position)) from error

    def connect(self, ports: Ports) -> None:
        if self.params.stored:
            self._store = ports.find(KeyStore)
            if self._store is not None:
                self._store.follow_keys()

    def process(self, incoming: Incoming) -> None:
        known = incoming.read(IDENTITY)
        if known is not None:
            if known.get("batch") and known.get("source") == self.name:
                self._check_key_of_batch(str(known.get("key") or ""), incoming.envelope.received_ms)
            return
        for header, key in presented(incoming.envelope.headers, self.params.headers):
            digested = digest(key)
            facts = self._find(digested)
            # The edge never forwards the usual headers to engines unless configured to, and they may hold another
            # processor's credential.
            if not self.params.forward and (facts is not None or header not in CREDENTIAL_HEADERS):
                incoming.hide_header(header)
            if facts is None:
                continue
            problem = facts.find_problem(incoming.envelope.received_ms)
            if problem is not None:
                incoming.say(f"key {facts.id}")
                raise unauthorized(incoming, problem)
            incoming.write(IDENTITY, dict(self._identity(digested, facts)))
            incoming.say(f"key {facts.id}, tenant {facts.tenant}")
            return

    def _identity(self, digested: str, facts: KeyFacts) -> dict[str, JsonValue]:
        known = self._identities.get(digested)
        if known is not None and known[0] is facts:
            return known[1]
        try:
            identity = identity_of(facts.make_grant(), self.name, self._groups)
        except ValueError as error:
            raise Unavailable(f"key {facts.id}: {error}") from error
        if len(self._identities) >= _KEPT:
            self._identities.clear()
        self._identities[digested] = (facts, identity)
        return identity

    def _check_key_of_batch(self, name: str, now_ms: int) -> None:
        """Raise Refusal for a line whose batch was made with a key that isn't valid any more."""
        if not name:
            return
        keys = [*self._table.list_named(name), *(self._stored_keys().list_named(name) if self.params.stored else ())]
        if all(key.find_problem(now_ms) is not None for key in keys):
            raise Refusal(401, "The API key with which the batch was made isn't valid any more.", code=KEY_REVOKED)

    def _find(self, digested: str) -> KeyFacts | None:
        found = self._table.find_key(digested)
        return self._stored_keys().find_key(digested) if found is None and self.params.stored else found

    def _stored_keys(self) -> KeyStore:
        """Raises Unavailable while they aren't known."""
        if self._store is None:
            raise Unavailable("the stored keys aren't here")
        missing = self._store.explain_missing()
        if missing is not None:
            raise Unavailable(missing)
        return self._store
