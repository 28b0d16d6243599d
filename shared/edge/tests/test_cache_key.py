"""The keys by which providers find the cached prompts of sessions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.identity import Identity
from pointsman_contracts.session import RequestSession
from pointsman_core.config import load
from pointsman_edge.sending.cache_key import session_key
from pointsman_providers.resolve import resolve

NAMES = st.text(max_size=6)


def key_of(tenant: str, session: str) -> str:
    return session_key(RequestSession(id=session), Identity(tenant=tenant))


@given(tenant=NAMES, session=NAMES, other=NAMES, another=NAMES)
def test_two_sessions_have_one_key_only_if_tenant_and_name_are_the_same(
    tenant: str, session: str, other: str, another: str
) -> None:
    same = (tenant, session) == (other, another)
    assert (key_of(tenant, session) == key_of(other, another)) is same
    assert len(key_of(tenant, session)) == 32


@pytest.mark.parametrize(
    ("provider", "apis"),
    [
        ({"kind": "openai"}, {"chat.completions", "responses"}),
        ({"kind": "openai", "base_url": "https://api.mistral.ai/v1"}, {"chat.completions"}),
        ({"kind": "openai", "base_url": "https://api.x.ai/v1"}, {"responses"}),
        ({"kind": "openai", "base_url": "https://api.groq.com/openai/v1"}, set[str]()),
        ({"kind": "azure", "base_url": "https://it.openai.azure.com"}, set[str]()),
        ({"kind": "azure", "base_url": "https://it.openai.azure.com", "prompt_cache_key": True}, None),
        ({"kind": "openai", "prompt_cache_key": False}, set[str]()),
        ({"kind": "anthropic"}, set[str]()),
    ],
)
def test_only_services_that_are_known_to_take_the_key_get_it_unless_the_operator_says_otherwise(
    provider: dict[str, object], apis: set[str] | None
) -> None:
    found = resolve(load({"providers": {"far": provider}}))["far"]
    assert found.keyed_apis == ({"chat.completions", "responses"} if apis is None else apis)
