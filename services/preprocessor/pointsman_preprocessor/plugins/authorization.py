"""`authorization`: what an identity must be allowed to before anything else is done for it."""

from pydantic import Field

from pointsman_core.config import Api
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import IDENTITY, Incoming, RequestProcessor
from pointsman_preprocessor.domain.admission import forbidden


class AuthorizationParams(Params):
    """What it needs."""

    scopes: tuple[str, ...] = Field(min_length=1)
    """All of these."""
    apis: tuple[Api, ...] = ()
    """Only for requests of these APIs, e.g. `embeddings`; default: all."""


class Authorization(RequestProcessor[AuthorizationParams]):
    """Refuses with 403 whoever lacks a scope. Which models an identity may use is in its `models`, and is looked at
    where the model is settled."""

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
