"""What a copy keeps of its request, and which requests have none."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_apis import named
from pointsman_mirror.domain.copying import NotCopied, make_copy

CHAT = named("chat.completions")
RESPONSES = named("responses")
MESSAGES = named("messages")
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_CHANGED = {"model", "service_tier", "store", "stream_options"}
_REFUSED = {"previous_response_id", "conversation", "container", "background", "tools", "mcp_servers"}


def copied(api: Any, document: object) -> dict[str, Any]:
    return json.loads(make_copy(api, json.dumps(document).encode(), "next"))


@given(st.dictionaries(st.text(max_size=6), _VALUES, max_size=5), st.sampled_from([CHAT, RESPONSES, MESSAGES]))
def test_a_copy_has_every_member_of_its_request_but_those_that_name_model_and_price(
    members: dict[str, Any], api: Any
) -> None:
    kept = {name: value for name, value in members.items() if name not in _CHANGED | _REFUSED | {"web_search_options"}}
    made = copied(api, {"model": "now", **kept})
    assert {name: made[name] for name in kept} == kept
    assert made["model"] == "next"
    assert set(made) - set(kept) <= {"model", "store", "stream_options"}


def test_numbers_keep_their_spelling() -> None:
    assert make_copy(CHAT, b'{"model":"a","temperature":1.0e0,"seed":007e0}'.replace(b"007e0", b"7E0"), "b") == (
        b'{"model":"b","temperature":1.0e0,"seed":7E0}'
    )


def test_a_stream_asks_for_its_usage_and_keeps_its_other_options() -> None:
    made = copied(CHAT, {"model": "a", "stream": True, "stream_options": {"include_obfuscation": False}})
    assert made["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert "stream_options" not in copied(CHAT, {"model": "a", "stream": False})
    assert "stream_options" not in copied(RESPONSES, {"model": "a", "stream": True})


def test_a_copy_is_neither_stored_nor_paid_as_fast() -> None:
    made = copied(RESPONSES, {"model": "a", "input": "Hi", "store": True, "service_tier": "priority"})
    assert made == {"model": "next", "input": "Hi", "store": False}


@pytest.mark.parametrize(
    ("api", "members", "reason"),
    [
        (RESPONSES, {"previous_response_id": "resp_1"}, "kept state"),
        (RESPONSES, {"conversation": {"id": "conv_1"}}, "kept state"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"tools": [{"type": "mcp", "server_url": "https://a"}]}, "tools of the server"),
        (RESPONSES, {"tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]}, "tools of the server"),
        (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools of the server"),
        (MESSAGES, {"mcp_servers": [{"url": "https://a"}]}, "tools of the server"),
        (CHAT, {"web_search_options": {"context": "low"}}, "tools of the server"),
        (CHAT, {"tools": "all"}, "tools of the server"),
        (CHAT, {"tools": [1]}, "tools of the server"),
        (named("embeddings"), {"input": "Hi"}, "api"),
        (named("unheard.of"), {}, "api"),
    ],
)
def test_a_request_that_does_more_than_ask_has_no_copy(api: Any, members: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotCopied, match=reason):
        copied(api, {"model": "a", **members})


@pytest.mark.parametrize("tool", [{"name": "f"}, {"type": "custom", "name": "f"}, {"type": "bash_20250124"}])
def test_tools_that_the_client_runs_are_copied(tool: dict[str, Any]) -> None:
    assert copied(MESSAGES, {"model": "a", "tools": [tool]})["tools"] == [tool]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"a","model":"b"}', b"\xff"])
def test_a_body_that_readers_read_differently_has_no_copy(body: bytes) -> None:
    with pytest.raises(NotCopied, match="unreadable"):
        make_copy(CHAT, body, "next")
