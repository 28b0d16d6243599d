"""Every member of a client's request is sent to the provider or refused."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_core.refusal import Refusal
from pointsman_providers.anthropic import Anthropic
from pointsman_providers.bedrock import Bedrock
from pointsman_providers.exchange import Format, ProviderCall
from pointsman_testing.provider_messages import ask

Strategy = st.SearchStrategy[Any]

_NUMBERS: Strategy = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False)
_SCALARS: Strategy = st.none() | st.booleans() | _NUMBERS | st.text(max_size=5)
_JSON: Strategy = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_PARTS: Strategy = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "refusal", "image_url", "file"])},
        optional={"text": _JSON, "refusal": _JSON, "image_url": _JSON | st.fixed_dictionaries({"url": _JSON})},
    )
    | _JSON,
    max_size=3,
)
_CALLS: Strategy = st.lists(
    st.fixed_dictionaries({"id": _JSON}, optional={"index": _JSON, "type": _JSON, "function": _JSON}), max_size=2
)
_MESSAGES: Strategy = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"]) | _JSON},
        optional={"content": _PARTS | _JSON, "tool_calls": _CALLS | _JSON, "tool_call_id": _JSON, "name": _JSON},
    )
    | _JSON,
    max_size=4,
)
_NAMES = (
    *("max_tokens", "temperature", "top_p", "stop", "stream", "stream_options", "tools", "tool_choice", "user"),
    *("response_format", "parallel_tool_calls", "reasoning_effort", "n", "seed", "logit_bias", "top_k"),
)
_FIELDS: Strategy = st.fixed_dictionaries({"messages": _MESSAGES | _JSON}, optional=dict.fromkeys(_NAMES, _JSON))


@pytest.mark.parametrize("form", [Anthropic(4096), Bedrock()], ids=["anthropic", "bedrock"])
@pytest.mark.parametrize(
    "arguments", ['{"a":' * 248 + "1" + "}" * 248, '{"a":' * 2000 + "1" + "}" * 2000, "[1]", '{"a": 1', "Oslo"]
)
def test_arguments_in_a_history_that_are_no_object_go_on_as_the_text_that_they_are(
    form: Format, arguments: str
) -> None:
    call: JsonValue = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    tools: JsonValue = [{"type": "function", "function": {"name": "f"}}]
    outcome = _put(form, {"messages": [{"role": "assistant", "tool_calls": [call]}], "tools": tools})
    assert isinstance(outcome, ProviderCall)
    block = orjson.loads(outcome.body)["messages"][1]["content"][0]
    assert (block.get("toolUse") or block)["input"] == {"arguments": arguments}


@pytest.mark.parametrize("form", [Anthropic(4096), Bedrock()], ids=["anthropic", "bedrock"])
@given(fields=_FIELDS)
def test_any_chat_is_either_put_or_refused_with_400_and_words(form: Format, fields: dict[str, JsonValue]) -> None:
    outcome = _put(form, fields)
    if isinstance(outcome, Refusal):
        assert outcome.status == 400
        assert outcome.message
    else:
        assert isinstance(orjson.loads(outcome.body)["messages"], list)


def _put(form: Format, fields: dict[str, JsonValue]) -> ProviderCall | Refusal:
    try:
        return form.translate_request(ask(**fields))
    except Refusal as refusal:
        return refusal


def test_a_body_that_is_none_is_refused() -> None:
    for body in (b"", b"[]", b"{"):
        with pytest.raises(Refusal, match="JSON"):
            Bedrock().translate_request(ask()._replace(body=body))
