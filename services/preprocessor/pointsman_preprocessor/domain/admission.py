"""Requires an identity, after the processors that may find one, and opens the models of an alias to it."""

from typing import Final

from pydantic import JsonValue

from pointsman_core.config import AUTO, Config
from pointsman_core.permission import allowed_models, may_ask
from pointsman_core.refusal import Refusal
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import IDENTITY, Incoming, RequestProcessor

NAME: Final = "authentication"
"""Its name in trails and metrics."""
CREDENTIAL_HEADERS: Final = ("authorization", "x-api-key", "api-key")
"""Headers for credentials of OpenAI's, Anthropic's and Azure's clients."""
CHALLENGE: Final = "www-authenticate"


class Admission(RequestProcessor):
    """Rejects a request that no earlier processor identified. It is added after the last of them."""

    type_name = NAME
    consumes = (IDENTITY,)

    def __init__(self, config: Config) -> None:
        super().__init__(NAME, Params(), {})
        self._fallbacks = {name: model.fallbacks for name, model in config.models.items()}

    def process(self, incoming: Incoming) -> None:
        identity = incoming.read(IDENTITY)
        if identity is not None:
            if incoming.rule is not None:
                self._open_alias(incoming, identity)
            return
        if any(incoming.envelope.headers.get(name) for name in (*CREDENTIAL_HEADERS, *incoming.credentials)):
            bare = not incoming.envelope.headers.get("authorization", "Bearer ").lower().startswith("bearer ")
            how = " The Authorization header must begin with `Bearer `." if bare else ""
            raise unauthorized(incoming, f"Incorrect API key or token provided.{how}")
        incoming.set_answer_header(CHALLENGE, 'Bearer realm="pointsman"')
        raise Refusal(
            401,
            "The request carries no credential; send an API key or a token as `Authorization: Bearer …`.",
            code="missing_api_key",
        )

    def _open_alias(self, incoming: Incoming, identity: dict[str, JsonValue]) -> None:
        """Allow the model that a rewrite gave, and its fallbacks, where the identity may ask for the alias. Where a
        selector chooses the model, it chooses among all."""
        allowed = allowed_models(incoming.attributes)
        if allowed is None or not may_ask(allowed, incoming.body.model):
            return
        model = incoming.model
        chosen = model.partition("/")[0] == AUTO
        opened: JsonValue = None if chosen else [*allowed, model, *self._fallbacks.get(model, ())]
        incoming.write(IDENTITY, {**identity, "models": opened})


def unauthorized(incoming: Incoming, message: str, code: str = "invalid_api_key") -> Refusal:
    """401 for a credential that isn't valid (RFC 6750, section 3.1). `message` never repeats it."""
    incoming.set_answer_header(CHALLENGE, 'Bearer realm="pointsman", error="invalid_token"')
    return Refusal(401, message, code=code)


def forbidden(incoming: Incoming, message: str, scopes: tuple[str, ...]) -> Refusal:
    """403 for an identity without the scopes that are needed (RFC 6750, section 3.1)."""
    wanted = " ".join(scopes)
    incoming.set_answer_header(CHALLENGE, f'Bearer realm="pointsman", error="insufficient_scope", scope="{wanted}"')
    return Refusal(403, message, type="permission_error", code="insufficient_scope")
