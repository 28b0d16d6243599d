"""`anonymous`: requests without a credential are let in, as whom the configuration says."""

from collections.abc import Mapping
from typing import cast

from pydantic import Field, JsonValue

from pointsman_core.config import Config
from pointsman_core.plugins import Params, Plugin
from pointsman_preprocessor.domain.admission import CREDENTIAL_HEADERS
from pointsman_preprocessor.domain.identities import Grant, ModelGroups, identity_of
from pointsman_preprocessor.domain.processing import IDENTITY, Incoming, RequestProcessor


class AnonymousParams(Params):
    """Who they are."""

    tenant: str = Field(default="anonymous", min_length=1)
    plan: str = ""
    scopes: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None
    """Names, patterns (`llama-*`) or `group:<group>`; default: all."""
    limits: dict[str, str | float] = Field(default_factory=dict[str, str | float])
    """Name → value, for limits that take their value from the identity."""
    headers: tuple[str, ...] = CREDENTIAL_HEADERS
    """A request with one of these isn't anonymous, nor is one with a header in which others look for a credential: one
    that nobody knows is refused."""


class Anonymous(RequestProcessor):
    """Produces the identity of requests that carry no credential. It stands behind the processors that read some."""

    type_name = "anonymous"
    params_type = AnonymousParams
    produces = (IDENTITY,)
    authenticates = True

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._params = cast("AnonymousParams", params)
        self._headers = tuple(header.lower() for header in self._params.headers)
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
        incoming.say(f"anonymous, tenant {self._params.tenant}")

    def _fill(self, groups: ModelGroups) -> None:
        params = self._params
        limits: dict[str, JsonValue] = dict(params.limits)
        grant = Grant(params.tenant, "", params.plan, params.scopes, params.models, limits)
        self._identity = identity_of(grant, self.name, groups)
