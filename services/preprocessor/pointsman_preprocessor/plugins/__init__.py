"""Request processors of this project."""

from typing import Final

from pointsman_plugins.preprocessing import RequestProcessor
from pointsman_preprocessor.plugins.anonymous import Anonymous
from pointsman_preprocessor.plugins.api_key_auth import ApiKeyAuth
from pointsman_preprocessor.plugins.authorization import Authorization
from pointsman_preprocessor.plugins.budget import Budget
from pointsman_preprocessor.plugins.concurrency_limit import ConcurrencyLimit
from pointsman_preprocessor.plugins.field_to_header import FieldToHeader
from pointsman_preprocessor.plugins.header_guard import HeaderGuard
from pointsman_preprocessor.plugins.identity_headers import IdentityHeaders
from pointsman_preprocessor.plugins.infra_request_limit import InfraRequestLimit
from pointsman_preprocessor.plugins.infra_token_limit import InfraTokenLimit
from pointsman_preprocessor.plugins.jwt_auth import JwtAuth
from pointsman_preprocessor.plugins.model_to_header import ModelToHeader
from pointsman_preprocessor.plugins.prompt_vector import PromptVector
from pointsman_preprocessor.plugins.request_id import RequestId
from pointsman_preprocessor.plugins.request_limit import RequestLimit
from pointsman_preprocessor.plugins.stream_usage import StreamUsage
from pointsman_preprocessor.plugins.tenant_salt import TenantSalt
from pointsman_preprocessor.plugins.token_limit import TokenLimit

BUILTIN: Final[tuple[type[RequestProcessor], ...]] = (
    Anonymous,
    ApiKeyAuth,
    Authorization,
    Budget,
    ConcurrencyLimit,
    FieldToHeader,
    HeaderGuard,
    IdentityHeaders,
    InfraRequestLimit,
    InfraTokenLimit,
    JwtAuth,
    ModelToHeader,
    PromptVector,
    RequestId,
    RequestLimit,
    StreamUsage,
    TenantSalt,
    TokenLimit,
)
