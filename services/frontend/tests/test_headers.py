"""Which headers are believed, told and sent on; nothing a client writes can pass for a gateway's word."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.journey import HeaderEdit
from pointsman_core.refusal import Refusal
from pointsman_edge.sending.header_edits import folded, with_edits
from pointsman_edge.taking_in.request_headers import ENGINE_ORDERS, HOP_BY_HOP, ClientHeaders, HeaderRules
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_frontend.adapters import http_turn
from pointsman_frontend.domain.heads import ResponseHeaderRules, request_head
from pointsman_testing.fake_stages import StartEdge
from pointsman_testing.raw_http import post, raw_request
from pointsman_testing.scripted_engine import ScriptedEngine

RULES = HeaderRules()
FORGED = [
    b"x-gateway-destination-endpoint", b"x-gateway-model-name", b"x-pointsman-tenant", b"x-pointsman-level",
    b"x-tenant-id", b"x-user-id", b"x-authz-user-id", b"x-auth-request-email", b"x-forwarded-for", b"x-forwarded-user",
    b"forwarded", b"x-real-ip", b"remote-user", b"x-consumer-username", b"x-amzn-oidc-identity",
    b"x-prefiller-host-port", *sorted(ENGINE_ORDERS),
]  # fmt: skip


def spellings(name: bytes) -> st.SearchStrategy[bytes]:
    """`name` with any of its dashes as underscores; servers hand names over in lower case."""
    return st.lists(st.sampled_from([b"-", b"_"]), min_size=name.count(b"-"), max_size=name.count(b"-")).map(
        lambda marks: b"".join(
            part + (marks[index] if index < len(marks) else b"") for index, part in enumerate(name.split(b"-"))
        )
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(FORGED).flatmap(spellings), st.sampled_from([b"admin", b"", b"a, b"])), max_size=6
    ),
    st.lists(st.tuples(st.sampled_from([b"x-mine", b"x-priority"]), st.just(b"kept")), max_size=3),
    st.integers(min_value=0, max_value=8),
)
def test_no_spelling_repetition_or_order_gets_a_forged_header_through(
    forged: list[tuple[bytes, bytes]], own: list[tuple[bytes, bytes]], cut: int
) -> None:
    headers = [*forged[:cut], *own, *forged[cut:]]
    read = RULES.read(headers, trusted=False)
    assert {name for name, _ in read.engine} <= {b"x-mine", b"x-priority"}
    assert set(read.stages) <= {"x-mine", "x-priority"}
    assert read.forwarded_for is None
    assert len(read.engine) == len(own)


def test_a_trusted_proxy_is_believed() -> None:
    read = RULES.read([(b"x-tenant-id", b"t1"), (b"x-forwarded-for", b"9.9.9.9")], trusted=True)
    assert read.stages == {"x-tenant-id": "t1", "x-forwarded-for": "9.9.9.9"}
    assert read.forwarded_for == "9.9.9.9"
    assert (b"x-tenant-id", b"t1") in read.engine


@pytest.mark.parametrize("setting", ["ssl_client_cert", "SSL-Client-Cert", "ssl_client-*"])
def test_a_header_that_a_setting_names_is_stripped_however_either_is_spelt(setting: str) -> None:
    rules = HeaderRules((setting,))
    for name in (b"ssl_client_cert", b"ssl-client-cert"):
        assert rules.read([(name, b"forged")], trusted=False).engine == []
        assert rules.read([(name, b"told")], trusted=True).engine == [(name, b"told")]


def test_stages_get_credentials_and_engines_do_not() -> None:
    sent = [(b"authorization", b"Bearer k"), (b"x-api-key", b"k"), (b"cookie", b"c=1")]
    read = RULES.read(sent, trusted=False)
    assert read.stages == {"authorization": "Bearer k", "x-api-key": "k"}
    assert read.engine == []


def test_credentials_go_on_where_engines_ask_for_them() -> None:
    read = HeaderRules(forward_credentials=True).read([(b"authorization", b"Bearer k")], trusted=False)
    assert read.engine == [(b"authorization", b"Bearer k")]


def test_repeated_headers_are_joined_for_the_stages_and_kept_for_the_engine() -> None:
    read = RULES.read([(b"accept", b"a"), (b"accept", b"b")], trusted=False)
    assert read.stages == {"accept": "a, b"}
    assert read.engine == [(b"accept", b"a"), (b"accept", b"b")]


@given(st.sampled_from(sorted(HOP_BY_HOP)))
def test_headers_of_the_connection_stop_here(name: bytes) -> None:
    read = RULES.read([(name, b"close")], trusted=False)
    assert (read.engine, read.stages) == ([], {})


def test_headers_named_by_connection_stop_here_but_none_that_matter() -> None:
    sent = [
        (b"connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"connection", b"content-type"),
        (b"content-type", b"application/json"),
    ]  # fmt: skip
    read = RULES.read(sent, trusted=False)
    assert read.engine == [(b"content-type", b"application/json")]
    assert read.content_type == "application/json"


def test_text_in_utf8_passes_unchanged() -> None:
    read = RULES.read([(b"x-title", "Café".encode())], trusted=False)
    assert read.stages == {"x-title": "Café"}
    assert read.engine == [(b"x-title", "Café".encode())]


@given(st.binary(max_size=40))
def test_any_bytes_are_taken_as_text_or_refused_by_name(value: bytes) -> None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        with pytest.raises(Refusal, match="x-any") as refused:
            RULES.read([(b"x-any", value)], trusted=False)
        assert (refused.value.status, refused.value.code) == (400, "invalid_header")
    else:
        assert RULES.read([(b"x-any", value)], trusted=False).stages["x-any"] == text


def test_a_flood_of_names_is_not_remembered() -> None:
    rules = HeaderRules()
    for number in range(20_000):
        rules.read([(b"x-%d" % number, b"")], trusted=False)
    assert len(rules._uses) < 5_000  # pyright: ignore[reportPrivateUsage]
    assert len(rules._shapes) < 2_000  # pyright: ignore[reportPrivateUsage]
    long = HeaderRules()
    long.read([(b"x" * 5_000, b"")], trusted=False)
    long.read([(b"x-%d" % number, b"") for number in range(100)], trusted=False)
    assert not long._shapes  # pyright: ignore[reportPrivateUsage]


NAMES = [
    b"host", b"accept", b"connection", b"content-type", b"content-length", b"content-encoding", b"traceparent",
    b"x-request-id", b"x-forwarded-for", b"x-routing-request", b"authorization", b"cookie", b"te", b"x-mine",
    b"x_tenant", b"close",
]  # fmt: skip
VALUES = [b"", b"1", b"close", b"x-mine", b"true", b"identity", "é".encode(), b"\xff", b"x" * 200]


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=8),
    st.booleans(),
)
def test_headers_of_known_names_are_read_like_those_of_new_names(
    headers: list[tuple[bytes, bytes]], trusted: bool
) -> None:
    rules = HeaderRules(limit=400)
    results: list[object] = []
    for _ in range(2):
        try:
            results.append(rules.read(headers, trusted=trusted))
        except Refusal as refusal:
            results.append((refusal.status, refusal.code, refusal.message))
    assert results[0] == results[1]
    if isinstance(read := results[0], ClientHeaders):
        values = {name: [value for other, value in headers if other == name] for name, _ in headers}
        for name, text in read.stages.items():
            assert text.encode() == b", ".join(values[name.encode()])
        assert set(read.engine) <= set(headers)


@given(st.text(max_size=30), st.text(max_size=30))
def test_an_edited_header_can_never_add_another(name: str, value: str) -> None:
    headers = with_edits([], folded([HeaderEdit(name=name, value=value)]))
    head = request_head(
        method=b"POST", target=b"/x", host=b"h", length=0, headers=headers, request_id="r", traceparent=None
    )
    lines = head.split(b"\r\n")
    assert len(lines) == 4 + len(headers) + 2
    assert len(headers) <= 1
    assert not any(byte < 0x20 or byte == 0x7F for line in lines for byte in line)


def test_an_engines_own_headers_stop_at_the_edge() -> None:
    sent = [
        (b"content-type", b"application/json"), (b"content-length", b"5"), (b"connection", b"close"),
        (b"transfer-encoding", b"chunked"), (b"x-request-id", b"e"), (b"server", b"s"), (b"date", b"d"),
        (b"x-pointsman-level", b"x"), (b"x-gateway-y", b"z"),
        (b"x-llm-d-z", b"1"), (b"x-prefiller-host-port", b"1"), (b"x-other", b"1"),
    ]  # fmt: skip
    passed = [(b"content-type", b"application/json"), (b"x-other", b"1")]
    assert ResponseHeaderRules().pass_on(sent) == (passed, b"application/json", b"")


def test_of_several_content_types_of_an_answer_the_last_one_counts() -> None:
    rules = ResponseHeaderRules()
    for second in (b"text/event-stream", b"text/plain"):
        assert rules.pass_on([(b"content-type", b"a/b"), (b"content-type", second), (b"x", b"y")])[1] == second
    assert rules.pass_on([(b"x", b"y")]) == ([(b"x", b"y")], b"", b"")


def test_a_flood_of_names_in_answers_is_not_remembered() -> None:
    rules = ResponseHeaderRules()
    for number in range(2_000):
        name = b"x-%d" % number
        assert rules.pass_on([(name, b""), (b"server", b"s")])[0] == [(name, b"")]
        http_turn._learned((name,))  # pyright: ignore[reportPrivateUsage]
    assert len(rules._known) < 500  # pyright: ignore[reportPrivateUsage]
    assert len(http_turn._seen) < 500  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("name", [b"", b"x y", b"x:", b"x\r\ny"])
def test_an_answer_has_no_header_of_an_impossible_name(name: bytes) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError):
            http_turn._learned((b"content-type", name))  # pyright: ignore[reportPrivateUsage]


PROXIES = TrustedProxies([ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")])


@pytest.mark.parametrize(
    ("host", "trusted"),
    [("10.1.2.3", True), ("11.1.2.3", False), ("fd00::7", True), ("::ffff:10.1.1.1", True), ("", False), ("x", False)],
)
def test_a_peer_is_trusted_by_its_network(host: str, trusted: bool) -> None:
    assert PROXIES.is_trusted(host) is trusted


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "9.9.9.9", "9.9.9.9"),
        ("10.0.0.1", "1.1.1.1, 9.9.9.9, 10.0.0.2", "9.9.9.9"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "9.9.9.9:1234", "9.9.9.9"),
        ("10.0.0.1", "[2001:db8::1]:80", "2001:db8::1"),
        ("8.8.8.8", "9.9.9.9", "8.8.8.8"),
    ],
)
def test_the_client_is_the_last_address_that_no_proxy_of_ours_has(
    peer: str, forwarded: str | None, client: str
) -> None:
    assert PROXIES.client_of(peer, forwarded) == client


async def test_a_key_for_anthropics_api_stays_here_and_its_version_goes_on(start_edge: StartEdge) -> None:
    body = b'{"model":"llama-8b","max_tokens":1,"messages":[{"role":"user","content":"x"}]}'
    sent = ("x-api-key: secret", "anthropic-version: 2023-06-01", "x-request-id: mine")
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post("/v1/messages", body, *sent))
    (seen,) = engine.received
    assert (seen.path, seen.body) == ("/v1/messages", body)
    assert (seen.header("x-api-key"), seen.header("anthropic-version")) == (None, "2023-06-01")
    assert answer.header("request-id") == answer.header("x-request-id") == "mine"
    (asked,) = edge.stages.asked
    assert asked[0].headers["x-api-key"] == "secret"


CHAT = b'{"model":"llama-8b","messages":[{"role":"user","content":"x"}]}'


@pytest.mark.requirement("S3-8")
@pytest.mark.parametrize(
    "lines",
    [
        ("X-POINTSMAN-TENANT: admin", "x-Gateway-Model-Name: m", "X-User-ID: root"),
        ("x_pointsman_tenant: admin", "X_Gateway_Model_Name: m"),
        ("x-pointsman-tenant: a", "X-Pointsman-Tenant: b", "x-pointsman-tenant: "),
        ("x-pointsman-tenant:admin", "x-tenant:admin"),
    ],
    ids=["any case", "underscores", "repeated", "without a space"],
)
async def test_a_forged_header_reaches_neither_stages_nor_engine_however_it_is_written(
    lines: tuple[str, ...], start_edge: StartEdge
) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post("/v1/chat/completions", CHAT, *lines))
    assert answer.status == 200
    (seen,) = engine.received
    ((request, _, _),) = edge.stages.asked
    for header in ("x-pointsman-tenant", "x_pointsman_tenant", "x-gateway-model-name", "x-user-id", "x-tenant"):
        assert seen.header(header) is None
        assert header not in request.headers


@pytest.mark.parametrize(
    "lines",
    [
        ("x-mine: 1\r\n x-pointsman-tenant: admin",),
        ("x-pointsman-tenant:\r\n\tadmin",),
        ("x-pointsman-tenant : admin",),
    ],
    ids=["folded into another", "folded", "a space before the colon"],
)
async def test_a_header_that_readers_read_differently_ends_at_the_door(
    lines: tuple[str, ...], start_edge: StartEdge
) -> None:
    async with ScriptedEngine() as engine:
        edge = await start_edge(engine.url)
        answer = await raw_request(edge.url, post("/v1/chat/completions", CHAT, *lines))
    if answer.status == 200:
        # Taken as one value, it is a value and no header.
        (seen,) = engine.received
        ((request, _, _),) = edge.stages.asked
        assert seen.header("x-pointsman-tenant") is None
        assert not [name for name in request.headers if "pointsman" in name]
    else:
        assert answer.status == 400
        assert engine.received == []
