"""Each built-in processor by itself."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.journey import BodyEdit
from pointsman_core.config import ConfigError, load
from pointsman_core.lexical import LEXICAL, PROMPT_VECTOR, encode, vector
from pointsman_core.refusal import Refusal
from pointsman_plugins.bench import incoming as bench_incoming
from pointsman_plugins.bench import make
from pointsman_plugins.preprocessing import ENGINE_SALT, IDENTITY, Incoming
from pointsman_preprocessor.configuration import check, compile_pipeline
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_preprocessor.plugins.agent_session import AgentSession
from pointsman_testing import builders


def processed(
    use: dict[str, object],
    headers: dict[str, str] | None = None,
    sections: Mapping[str, object] | None = None,
    **fields: JsonValue,
) -> Incoming:
    envelope = builders.preprocess_request(path="/v1/completions", headers=headers or {}, request_id="r-1")
    document: dict[str, JsonValue] = {"model": "m", "prompt": "hi", **fields}
    incoming = Incoming(envelope, parse(envelope.path, json.dumps(document).encode()), read_headers(envelope.headers))
    assert compile_pipeline(load({"preprocessing": [use], **(sections or {})})).run(incoming) is None
    return incoming


def problem(use: dict[str, object], **sections: object) -> str:
    with pytest.raises(ConfigError) as caught:
        check(load({"preprocessing": [use], **sections}))
    return str(caught.value)


POOLS: dict[str, object] = {
    "pools": {"p": {"models": ["base", "tuned"], "loras": ["tuned"]}},
    "models": {"alias": {"pool": "p", "served_as": "tuned"}},
}


@pytest.mark.requirement("S0-6", "S1-14")
@pytest.mark.parametrize(("model", "base"), [("base", "base"), ("tuned", "base"), ("alias", "base"), ("elsewhere", "")])
def test_model_to_header_names_the_model_and_its_base(model: str, base: str) -> None:
    """The base header is empty when the base is unknown."""
    incoming = processed({"use": "model-to-header"}, sections=POOLS, model=model)
    assert incoming.header("x-gateway-model-name") == model
    assert incoming.header("x-gateway-base-model-name") == base


def test_an_adapter_of_two_possible_bases_must_be_configured() -> None:
    pools = {"p": {"models": ["a", "b", "tuned"], "loras": ["tuned"]}}
    words = problem({"use": "model-to-header"}, pools=pools)
    assert words == "preprocessing.0.bases: adapter 'tuned' may belong to a, b; say which in `bases`"
    incoming = processed({"use": "model-to-header", "bases": {"tuned": "b"}}, sections={"pools": pools}, model="tuned")
    assert incoming.header("x-gateway-base-model-name") == "b"


@pytest.mark.parametrize("sent", ["forged", "base"])
def test_a_clients_model_header_is_removed(sent: str) -> None:
    """Also when it is right: another model may serve the request yet."""
    incoming = processed({"use": "model-to-header"}, {"x-gateway-model-name": sent}, POOLS, model="base")
    told = [(edit.value, edit.tells) for edit in incoming.header_edits.values()]
    assert told == [("base", "model"), ("base", "base_model")]


@pytest.mark.requirement("S0-11")
@pytest.mark.parametrize(
    ("field", "value", "header"),
    [
        ("tier", "gold", "gold"),
        ("n", 3, "3"),
        ("temperature", 0.5, "0.5"),
        ("echo", True, "true"),
        ("metadata.tier", {"tier": "gold"}, "gold"),
        ("metadata.tier", {"other": "gold"}, None),
        ("metadata.tier.deep", {"tier": "gold"}, None),
        ("tier", None, None),
        ("tier", ["gold"], None),
        ("tier", "go\r\nld", None),
        ("tier", "", None),
        ("tier", "  ", None),
        ("id", 2**64 + 1, str(2**64 + 1)),
        ("metadata.id", {"id": -(10**30) - 7}, str(-(10**30) - 7)),
        ("temperature", 1e30, "1e+30"),
        ("tier", "x" * 1025, None),
    ],
)
def test_field_to_header_copies_plain_values_and_removes_what_was_there(
    field: str, value: JsonValue, header: str | None
) -> None:
    incoming = processed(
        {"use": "field-to-header", "field": field, "header": "X-Tier"},
        {"x-tier": "forged"},
        None,
        **{field.partition(".")[0]: value},
    )
    assert incoming.header("x-tier") == header


def test_a_request_without_a_session_begins_one_that_its_answer_names() -> None:
    first, again = (processed({"use": "session-id"}) for _ in range(2))
    session = first.headers.session
    assert session
    assert first.header("x-session-id") == session
    assert first.answer_headers["x-session-id"].value == session
    assert again.headers.session != session or again.envelope.received_ms == first.envelope.received_ms
    follow_up = processed({"use": "session-id"}, {"x-session-id": session})
    assert (follow_up.headers.session, follow_up.header_edits) == (session, {})
    assert follow_up.answer_headers["x-session-id"].value == session


_UUID = "0b8f6a52-3f57-4c2b-9d0e-6a1f2b3c4d5e"
_READABLE = st.characters(exclude_categories=("Cc", "Cs"))


@pytest.mark.requirement("S2-11")
@pytest.mark.parametrize(
    ("headers", "fields", "session"),
    [
        ({"x-claude-code-session-id": "c1"}, {}, "c1"),
        ({"x-claude-code-session-id": "c1", "x-claude-code-agent-id": "a7"}, {}, "c1/a7"),
        ({"thread-id": "t1", "session-id": "s1"}, {"prompt_cache_key": "p1"}, "t1"),
        ({"session_id": "s1", "x-openai-subagent": "review"}, {}, "s1/review"),
        ({"x-session-affinity": "o1"}, {}, "o1"),
        ({"x-litellm-session-id": "l1"}, {}, "l1"),
        ({}, {"prompt_cache_key": "p1"}, "p1"),
        ({}, {"litellm_session_id": "l2"}, "l2"),
        ({}, {"metadata": {"session_id": "m1"}}, "m1"),
        ({}, {"metadata": {"user_id": f"user_{'ab' * 32}_account__session_{_UUID}"}}, _UUID),
        ({}, {"metadata": {"user_id": f'{{"device_id": "d", "session_id": "{_UUID}"}}'}}, _UUID),
        # A user isn't a session.
        ({}, {"metadata": {"user_id": "ada"}}, None),
        ({}, {"metadata": {"user_id": "[1]"}}, None),
        ({}, {"user": "ada", "safety_identifier": "x"}, None),
        # Names that can't be one.
        ({"session-id": "x" * 257}, {"prompt_cache_key": "p1"}, "p1"),
        ({"session-id": " "}, {"metadata": {"session_id": ["a"]}}, None),
        ({}, {"prompt_cache_key": ""}, None),
        ({}, {"prompt_cache_key": 7}, None),
        # The gateway's own header comes first.
        ({"x-session-id": "mine", "x-claude-code-session-id": "c1"}, {}, "mine"),
    ],
)
def test_an_agents_request_has_the_session_that_the_agent_names(
    headers: dict[str, str], fields: dict[str, JsonValue], session: str | None
) -> None:
    incoming = processed({"use": "agent-session"}, headers, None, **fields)
    assert incoming.headers.session == session


def test_where_agents_sessions_are_looked_for_is_configured() -> None:
    rule: dict[str, object] = {"use": "agent-session", "headers": ["X-Run"], "fields": ["tags.run"]}
    rule["agent_headers"] = ["X-Worker"]
    headers = {"thread-id": "t1", "x-worker": "w"}
    assert processed(rule, headers, None, tags={"run": "r1"}).headers.session == "r1/w"
    assert processed(rule, {**headers, "x-run": "r2"}).headers.session == "r2/w"
    assert processed(rule, headers).headers.session is None


@given(st.text(_READABLE, max_size=80), st.text(_READABLE, max_size=80))
def test_no_name_of_a_session_ends_a_request(header: str, user: str) -> None:
    session = processed(
        {"use": "agent-session"}, {"session-id": header}, None, metadata={"user_id": user}
    ).headers.session
    assert session is None or (0 < len(session) <= 256 and session.isprintable())


@pytest.mark.requirement("S0-11")
def test_header_guard_removes_credentials_and_internal_headers() -> None:
    headers = {"authorization": "Bearer s", "x-gateway-a": "1", "x-pointsman-b": "2", "cookie": "c", "accept": "*/*"}
    incoming = processed({"use": "header-guard"}, headers)
    assert {name for name in headers if incoming.header(name) is not None} == {"accept"}


def test_header_guard_goes_by_patterns_with_exceptions() -> None:
    headers = {"x-internal-a": "1", "x-internal-b": "2", "authorization": "Bearer s"}
    incoming = processed({"use": "header-guard", "remove": ["X-Internal-*"], "keep": ["x-internal-b"]}, headers)
    assert {name for name in headers if incoming.header(name) is not None} == {"x-internal-b", "authorization"}


def test_stream_usage_is_added_to_streams_that_lack_it_and_other_options_stay() -> None:
    incoming = processed({"use": "stream-usage"}, stream=True, stream_options={"chunk": 5})
    assert incoming.body_edits["stream_options"] == BodyEdit(
        field="stream_options", value={"chunk": 5, "include_usage": True}, unasked=True
    )
    assert incoming.attributes == {"usage_added": True}


@pytest.mark.parametrize("fields", [{}, {"stream": False}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_stream_usage_leaves_other_requests_alone(fields: dict[str, JsonValue]) -> None:
    incoming = processed({"use": "stream-usage"}, None, None, **fields)
    assert not incoming.body_edits
    assert not incoming.attributes


def test_the_request_id_reaches_the_engine() -> None:
    assert not processed({"use": "request-id"}).header_edits, "the edge writes x-request-id itself"
    assert processed({"use": "request-id", "header": "X-Trace"}).header("x-trace") == "r-1"


def test_a_trusted_proxy_names_the_identity() -> None:
    headers = {"x-pointsman-tenant": "acme", "x-pointsman-user": "ann"}
    incoming = processed({"use": "identity-headers"}, headers)
    assert incoming.read(IDENTITY) == {"tenant": "acme", "subject": "ann", "user": "ann", "source": "identity-headers"}
    assert processed({"use": "identity-headers"}).read(IDENTITY) is None


def test_a_request_without_a_required_identity_is_401() -> None:
    with pytest.raises(Refusal) as caught:
        processed({"use": "identity-headers", "required": ["tenant"]})
    assert caught.value.status == 401


def test_an_identity_header_that_any_client_can_send_is_a_configuration_error() -> None:
    words = problem({"use": "identity-headers", "fields": {"tenant": "x-tenant"}})
    assert words.startswith("preprocessing.0.fields:")
    assert "any client can send it" in words


@pytest.mark.parametrize("use", ["field-to-header", "model-to-header", "request-id"])
def test_a_header_name_must_be_one(use: str) -> None:
    assert "header" in problem(
        {"use": use, "header": "a b", "field": "x"} if use == "field-to-header" else {"use": use, "header": "a b"}
    )


FRAMING = ["Content-Length", "transfer-encoding", "Host", "connection", "te", "trailer", "upgrade", "keep-alive"]


@pytest.mark.parametrize("name", [*FRAMING, "content_length", "traceparent"])
@pytest.mark.parametrize(
    "use",
    [
        {"use": "field-to-header", "field": "x", "header": "?"},
        {"use": "model-to-header", "header": "?"},
        {"use": "model-to-header", "base_header": "?"},
        {"use": "request-id", "header": "?"},
        {"use": "header-guard", "remove": ["?"]},
    ],
)
def test_a_header_that_the_edge_writes_itself_is_refused_when_the_configuration_is_read(
    use: dict[str, object], name: str
) -> None:
    named = {key: [name] if value == ["?"] else name if value == "?" else value for key, value in use.items()}
    assert f"{name}: the edge writes this header itself; name another one" in problem(named)


def test_a_pattern_of_header_guard_leaves_what_the_edge_writes_itself() -> None:
    incoming = processed({"use": "header-guard", "remove": ["*"]}, {"host": "gateway", "x-a": "1"})
    assert [*incoming.header_edits] == ["x-a"]


def test_a_tenant_has_a_salt_of_its_own_that_the_client_can_only_divide() -> None:
    uses: list[object] = [{"use": "identity-headers"}, "tenant-salt"]

    def salt_of(tenant: str, **fields: JsonValue) -> JsonValue:
        envelope = builders.preprocess_request(path="/v1/completions", headers={"x-pointsman-tenant": tenant})
        document: dict[str, JsonValue] = {"model": "m", "prompt": "hi", **fields}
        incoming = Incoming(
            envelope, parse(envelope.path, json.dumps(document).encode()), read_headers(envelope.headers)
        )
        assert compile_pipeline(load({"preprocessing": uses})).run(incoming) is None
        assert incoming.read(ENGINE_SALT) is (True if tenant else None)
        return incoming.field("cache_salt")

    assert salt_of("acme") == salt_of("acme")
    salts = [salt_of("acme"), salt_of("evil"), salt_of("acme", cache_salt="x"), salt_of("evil", cache_salt="x")]
    assert len(set(map(str, salts))) == 4
    assert salt_of("", cache_salt="x") == "x"
    assert "tenant-salt" in problem({"use": "tenant-salt"})


SELECTED: dict[str, object] = {
    "pools": {"p": {"models": ["m"]}},
    "selectors": {"s": {"rankings": {"a": {"scorers": ["cost", "semantic-match"]}}}},
}


def test_the_prompt_vector_is_made_only_when_a_selector_reads_it() -> None:
    chat: list[JsonValue] = [
        {"role": "user", "content": "translate this"},
        {"role": "assistant", "content": "poems"},
        {"role": "user", "content": [{"type": "text", "text": "debug my canary-51 code"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "stories"},
    ]

    def produced(sections: dict[str, object], path: str, **fields: JsonValue) -> JsonValue:
        envelope = builders.preprocess_request(path=path)
        body = parse(path, json.dumps({"model": "m", **fields}).encode())
        incoming = Incoming(envelope, body, read_headers({}))
        assert compile_pipeline(load(sections)).run(incoming) is None
        return incoming.attributes.get(PROMPT_VECTOR.name)

    def made(text: str) -> JsonValue:
        return {"kind": LEXICAL, "values": encode(vector(text))}

    path = "/v1/chat/completions"
    assert (
        produced({"pools": SELECTED["pools"], "selectors": {"s": {"scorers": ["cost"]}}}, path, messages=chat) is None
    )
    found = produced(SELECTED, path, messages=chat)
    assert found == made("debug my canary-51 code")
    assert "canary" not in str(found)
    assert produced(SELECTED | {"preprocessing": ["prompt-vector"]}, path, messages=chat) == found
    assert produced(SELECTED, "/v1/completions", prompt="a poem") == made("a poem")
    assert produced(SELECTED, "/v1/completions", prompt=[1, 2, 3]) is None
    assert produced(SELECTED, "/v1/embeddings", input="a poem") is None
    assert produced(SELECTED, "/v1/responses", input="a poem") == made("a poem")
    assert produced(SELECTED, "/v1/messages", max_tokens=1, messages=chat[:1]) == made("translate this")
    long = "first words " + "filler " * 2000 + "last words"
    assert produced(SELECTED, "/v1/completions", prompt=long) == made(f"{long[:1024]} {long[-1024:]}")


def test_a_cookie_or_the_api_key_names_a_session_by_its_hash() -> None:
    processor = make(AgentSession, cookies=("sid",), by_key=True)

    def session(headers: dict[str, str], key: str | None = None) -> str | None:
        request = bench_incoming({"model": "m", "messages": [{"role": "user", "content": "x"}]}, headers)
        if key is not None:
            request.attributes[IDENTITY.name] = {"tenant": "acme", "key": key}
        processor.process(request)
        return request.headers.session

    one = session({"cookie": "a=1; sid=secret"})
    assert one is not None
    assert one.startswith("cookie-")
    assert "secret" not in one
    assert one == session({"cookie": "sid=secret"}, "k")
    assert one != session({"cookie": "sid=other"})
    by_key = session({}, "k")
    assert by_key is not None
    assert by_key.startswith("key-")
    assert by_key != session({}, "l")
    assert session({"cookie": "a=1"}) is None
