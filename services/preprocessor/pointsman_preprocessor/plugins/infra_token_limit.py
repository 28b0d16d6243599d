"""`infra-token-limit`: so many tokens for the whole gateway, whoever uses them (S3-6)."""

from typing import Self

from pydantic import model_validator

from pointsman_preprocessor.plugins.infra_request_limit import without_identity
from pointsman_preprocessor.plugins.token_limit import TokenLimit, TokenLimitParams


class InfraTokenLimitParams(TokenLimitParams):
    """How many tokens."""

    @model_validator(mode="after")
    def _knows_nobody(self) -> Self:
        return without_identity(self)


class InfraTokenLimit(TokenLimit):
    """As `token-limit`, without an identity."""

    type_name = "infra-token-limit"
    params_type = InfraTokenLimitParams
