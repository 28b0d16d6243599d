"""`identity-headers`: a trusted proxy in front has authenticated the client and says so in headers."""

from collections.abc import Mapping
from typing import Final, cast

from pydantic import Field, JsonValue, field_validator

from pointsman_core.plugins import Params, Plugin
from pointsman_core.refusal import Refusal
from pointsman_preprocessor.domain.processing import IDENTITY, Incoming, RequestProcessor

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
    """Fields without which a request is refused with 401."""

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


class IdentityHeaders(RequestProcessor):
    """Produces the identity from headers that edges take from trusted proxies only."""

    type_name = "identity-headers"
    params_type = IdentityHeadersParams
    produces = (IDENTITY,)

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._params = cast("IdentityHeadersParams", params)

    def process(self, incoming: Incoming) -> None:
        headers = incoming.envelope.headers
        identity: dict[str, JsonValue] = {
            field: value for field, header in self._params.fields.items() if (value := headers.get(header))
        }
        for field in self._params.required:
            if field not in identity:
                raise Refusal(
                    401,
                    f"The request carries no {field}; the proxy in front of the gateway must name it.",
                    type="authentication_error",
                    code="no_identity",
                )
        if identity:
            incoming.write(IDENTITY, (incoming.read(IDENTITY) or {}) | identity | {"source": self.name})
