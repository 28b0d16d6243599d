"""`infra-request-limit`: so many requests for the whole gateway, before anybody is asked who they are (S3-5)."""

from typing import Self, TypeVar

from pydantic import model_validator

from pointsman_preprocessor.domain.limits.scope import OF_IDENTITY
from pointsman_preprocessor.plugins.limit import LimitParams
from pointsman_preprocessor.plugins.request_limit import RequestLimit, RequestLimitParams


class InfraRequestLimitParams(RequestLimitParams):
    """How many requests."""

    @model_validator(mode="after")
    def _knows_nobody(self) -> Self:
        return without_identity(self)


class InfraRequestLimit(RequestLimit):
    """What it counts stays counted when the request is refused later: it has been work all the same."""

    type_name = "infra-request-limit"
    params_type = InfraRequestLimitParams
    kept = True


P = TypeVar("P", bound=LimitParams)


def without_identity(params: P) -> P:
    """The parameters of a limit that runs before authentication. Raises ValueError."""
    personal = [scope for scope in params.per if scope in OF_IDENTITY]
    if personal or params.claim is not None:
        what = f"per {', '.join(personal)}" if personal else "claim"
        raise ValueError(f"{what}: this limit knows no identity; use `request-limit` or `token-limit` for that")
    return params
