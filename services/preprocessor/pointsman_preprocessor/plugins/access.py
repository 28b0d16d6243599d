"""Identities without a credential, and their permissions: `anonymous-auth`, `authorization`."""

from pydantic import Field, JsonValue

from pointsman_core.config import Api, Config
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import IDENTITY, Incoming, RequestProcessor
from pointsman_preprocessor.domain.admission import CREDENTIAL_HEADERS, forbidden
from pointsman_preprocessor.domain.identities import Grant, ModelGroups, SenderPermissions, identity_of


class AnonymousParams(SenderPermissions):
    """The identity of anonymous requests."""

    tenant: str = Field(default="anonymous", min_length=1)
    limits: dict[str, str | float] = Field(default_factory=dict[str, str | float])
    """Name → value, for limits that take their value from the identity."""
    headers: tuple[str, ...] = CREDENTIAL_HEADERS
    """A request with one of these isn't anonymous. Nor is one with a header where other processors look for a
    credential: an unknown credential is rejected."""


class Anonymous(RequestProcessor[AnonymousParams]):
    """Produces the identity of requests without a credential. It comes after the processors that read credentials."""

    type_name = "anonymous"
    produces = (IDENTITY,)
    authenticates = True

    def setup(self) -> None:
        self._headers = tuple(header.lower() for header in self.params.headers)
        self._identity: dict[str, JsonValue] = {}
        self._fill(ModelGroups())

    def bind(self, config: Config) -> None:
        self._fill(ModelGroups(config))

    def process(self, incoming: Incoming) -> None:
        if incoming.read(IDENTITY) is not None:
            return
        headers = incoming.envelope.headers
        if any(headers.get(header) for header in (*self._headers, *incoming.credentials)):
            return
        incoming.write(IDENTITY, dict(self._identity))
        incoming.say(f"anonymous, tenant {self.params.tenant}")

    def _fill(self, groups: ModelGroups) -> None:
        params = self.params
        limits: dict[str, JsonValue] = dict(params.limits)
        grant = Grant(tenant=params.tenant, permissions=params, limits=limits)
        self._identity = identity_of(grant, self.name, groups)


class AuthorizationParams(Params):
    """The required permissions."""

    scopes: tuple[str, ...] = Field(min_length=1)
    """Required scopes, all of them."""
    apis: tuple[Api, ...] = ()
    """Only for requests of these APIs, e.g. `embeddings`; default: all."""


class Authorization(RequestProcessor[AuthorizationParams]):
    """Rejects an identity that lacks a scope with 403. An identity's `models` are checked later, when the model is
    known."""

    type_name = "authorization"
    consumes = (IDENTITY,)
    reports = True

    def setup(self) -> None:
        self._needed = frozenset(self.params.scopes)
        self._apis = frozenset[str](self.params.apis)

    def process(self, incoming: Incoming) -> None:
        if self._apis and incoming.body.api.name not in self._apis:
            return
        scopes = (incoming.read(IDENTITY) or {}).get("scopes")
        held = {str(scope) for scope in scopes} if isinstance(scopes, list) else set[str]()
        lacking = self._needed - held
        if lacking:
            raise forbidden(incoming, f"This needs the scope {', '.join(sorted(lacking))}.", self.params.scopes)
