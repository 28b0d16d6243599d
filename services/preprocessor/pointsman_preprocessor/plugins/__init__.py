"""Request processors of this project."""

from typing import Final

from pointsman_plugins.preprocessing import RequestProcessor
from pointsman_preprocessor.plugins.access import Anonymous, Authorization
from pointsman_preprocessor.plugins.agent_session import AgentSession
from pointsman_preprocessor.plugins.api_key_auth import ApiKeyAuth
from pointsman_preprocessor.plugins.body_fields import StreamUsage, TenantSalt
from pointsman_preprocessor.plugins.budget import Budget
from pointsman_preprocessor.plugins.header_guard import HeaderGuard
from pointsman_preprocessor.plugins.headers import FieldToHeader, ModelToHeader, RequestId, SessionId
from pointsman_preprocessor.plugins.identity_headers import IdentityHeaders
from pointsman_preprocessor.plugins.jwt_auth import JwtAuth
from pointsman_preprocessor.plugins.prompt_vector import PromptVector
from pointsman_preprocessor.plugins.request_limits import ConcurrencyLimit, InfraRequestLimit, RequestLimit
from pointsman_preprocessor.plugins.token_limits import InfraTokenLimit, TokenLimit

BUILTIN: Final[tuple[type[RequestProcessor], ...]] = (
    AgentSession,
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
    SessionId,
    StreamUsage,
    TenantSalt,
    TokenLimit,
)
