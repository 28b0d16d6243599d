"""`identity-headers`: takes the identity from headers of a trusted proxy that has authenticated the client."""

from typing import Final

from pydantic import Field, JsonValue, field_validator

from pointsman_core.refusal import Refusal
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import IDENTITY, Incoming, RequestProcessor

_STRIPPED: Final = ("x-pointsman-", "x-gateway-")


class IdentityHeadersParams(Params):
    """Field of the identity → header."""

    fields: dict[str, str] = Field(
        default_factory=lambda: {
            "tenant": "x-pointsman-tenant",
            "subject": "x-pointsman-user",
            "user": "x-pointsman-user",
            "workload": "x-pointsman-workload",
            "plan": "x-pointsman-plan",
        },
        min_length=1,
    )
    required: tuple[str, ...] = ()
    """Required fields; without one of them, a request is rejected with 401."""

    @field_validator("fields")
    @classmethod
    def _clients_cannot_send_them(cls, value: dict[str, str]) -> dict[str, str]:
        for header in value.values():
            if not header.lower().startswith(_STRIPPED):
                raise ValueError(
                    f"{header!r}: any client can send it; edges take {' and '.join(f'{p}*' for p in _STRIPPED)} "
                    "from trusted proxies only"
                )
        return {field: header.lower() for field, header in value.items()}


class IdentityHeaders(RequestProcessor[IdentityHeadersParams]):
    """Produces the identity from headers that edges accept from trusted proxies only."""

    type_name = "identity-headers"
    produces = (IDENTITY,)

    def process(self, incoming: Incoming) -> None:
        headers = incoming.envelope.headers
        identity: dict[str, JsonValue] = {
            field: value for field, header in self.params.fields.items() if (value := headers.get(header))
        }
        for field in self.params.required:
            if field not in identity:
                raise Refusal(
                    401,
                    f"The request carries no {field}; the proxy in front of the gateway must name it.",
                    type="authentication_error",
                    code="no_identity",
                )
        if identity:
            incoming.write(IDENTITY, (incoming.read(IDENTITY) or {}) | identity | {"source": self.name})
