"""The key by which a provider finds the cached prompt of a session.

OpenAI, Mistral and xAI choose the machine by it, besides the beginning of the prompt; without it the turns of one
session may reach machines that don't have its prompt
(https://developers.openai.com/api/docs/guides/prompt-caching,
https://docs.mistral.ai/studio-api/conversations/advanced/prompt-caching,
https://docs.x.ai/developers/advanced-api-usage/prompt-caching/maximizing-cache-hits).
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from pointsman_contracts.identity import Identity
from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.session import RequestSession

FIELD: Final = "prompt_cache_key"
_IN_BODY: Final = b'"prompt_cache_key"'
_BYTES: Final = 16


def session_key(session: RequestSession | None, identity: Identity | None) -> str:
    """A hash of tenant and session, 32 hexadecimal digits: a provider learns which requests belong together, and no
    name. Empty without a session."""
    if session is None:
        return ""
    tenant = "" if identity is None else identity.tenant
    return blake2b(f"{len(tenant)} {tenant}{session.id}".encode(), digest_size=_BYTES).hexdigest()


def add_key(edits: Sequence[BodyEdit], key: str, body: bytes) -> Sequence[BodyEdit]:
    """The edits of a request, with this key unless it is empty or the client sent one."""
    return (*edits, BodyEdit(field=FIELD, value=key, unasked=True)) if key and _IN_BODY not in body else edits
