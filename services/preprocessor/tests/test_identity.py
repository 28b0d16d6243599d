"""The identity of a request from API keys, tokens or neither; credentials are shown nowhere."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Final

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt import PyJWK
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from msgspec.structs import replace
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.batch import KEY_REVOKED
from pointsman_contracts.journey import StageReport
from pointsman_core.config import ConfigError, load
from pointsman_core.permission import allowed_models, may_use
from pointsman_core.refusal import Refusal
from pointsman_plugins.preprocessing import IDENTITY, Incoming, Ports
from pointsman_preprocessor.configuration import check, compile_pipeline
from pointsman_preprocessor.domain.api_keys import KeyFacts, KeyStore, KeyTable
from pointsman_preprocessor.domain.pipeline import depart, describe
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_preprocessor.domain.tokens import ExpectedClaims, TokenRefused, verified
from pointsman_testing import builders

CANARY: Final = "sk-canary-9f31"
NOW_MS: Final = 1_800_000_000_000
NOW: Final = NOW_MS // 1000
JSON: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.sampled_from([-(2**63) - 1, 2**64, 10**30])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
SECTIONS: Final[dict[str, object]] = {
    "pools": {"p": {"models": ["a", "b"]}},
    "models": {"a": {"pool": "p", "groups": ["own"]}, "b": {"pool": "p", "groups": ["own"]}},
}


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


KEYS: Final[dict[str, object]] = {
    "use": "api-key-auth",
    "keys": [
        {
            "sha256": hashed(CANARY),
            "id": "laptop",
            "tenant": "acme",
            "plan": "gold",
            "scopes": ["chat"],
            "models": ["group:own", "x-*"],
            "limits": {"requests": "5/s"},
        },
        {
            "sha256": f"sha256:{hashed('old').upper()}".lower(),
            "id": "old",
            "tenant": "t",
            "expires": "2020-01-01T00:00:00Z",
        },
        {"sha256": hashed("off"), "id": "off", "tenant": "t", "disabled": True},
    ],
}


def request(headers: Mapping[str, str] | None = None, **changes: object) -> Incoming:
    envelope = builders.preprocess_request(
        path="/v1/completions", headers=dict(headers or {}), received_ms=NOW_MS, **changes
    )
    body = parse(envelope.path, orjson.dumps({"model": "a", "prompt": "hi"}))
    return Incoming(envelope, body, read_headers(envelope.headers))


def run(incoming: Incoming, *entries: object, ports: Ports | None = None) -> Incoming:
    pipeline = compile_pipeline(load(SECTIONS | {"preprocessing": list(entries)}), ports=ports)
    assert pipeline.run(incoming) is None
    return incoming


def refused(headers: Mapping[str, str] | None, *entries: object) -> tuple[Refusal, str | None]:
    """The refusal and the challenge that the client gets."""
    incoming = request(headers)
    with pytest.raises(Refusal) as caught:
        run(incoming, *entries)
    assert CANARY not in caught.value.message
    assert all(CANARY not in str(verdict) for verdict in incoming.verdicts)
    edit = incoming.answer_headers.get("www-authenticate")
    return caught.value, None if edit is None else edit.value


@pytest.mark.requirement("S3-8")
@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {CANARY}"},
        {"authorization": f"bearer  {CANARY} "},
        {"x-api-key": CANARY},
        {"api-key": CANARY},
    ],
)
def test_a_key_is_known_by_its_hash_in_whatever_header_its_client_sends_it(headers: dict[str, str]) -> None:
    incoming = run(request(headers), KEYS)
    assert incoming.read(IDENTITY) == {
        "tenant": "acme",
        "subject": "laptop",
        "plan": "gold",
        "scopes": ["chat"],
        "models": ["a", "b", "x-*"],
        "limits": {"requests": "5/s"},
        "source": "api-key-auth",
        "key": "laptop",
    }
    assert incoming.verdicts[0].note == "key laptop, tenant acme"
    journey = depart(incoming, describe(incoming, (64,)), StageReport(stage="preprocessor", instance="i"))
    assert CANARY.encode() not in journey.encode()


ALIASES: Final[dict[str, object]] = {
    "pools": {"p": {"models": ["a", "b", "c", "d"]}},
    "models": {"a": {"pool": "p", "fallbacks": ["b"]}, "b": {"pool": "p"}, "c": {"pool": "p"}, "d": {"pool": "p"}},
    "selectors": {"best": {"models": ["a", "b"]}},
    "rewrites": [{"match": "prod", "to": "a"}, {"match": "team-*", "to": "c"}, {"match": "smart", "to": "auto"}],
}


@pytest.mark.parametrize(
    ("models", "asked", "served"),
    [
        (["alias:prod"], "prod", {"a", "b"}),
        (["alias:prod"], "a", set[str]()),
        (["alias:prod"], "team-1", set[str]()),
        (["alias:a"], "a", set[str]()),
        (["prod"], "prod", set[str]()),
        (["alias:team-*", "d"], "team-1", {"c", "d"}),
        (["alias:smart"], "smart", {"a", "b", "c", "d"}),
        (["alias:smart"], "auto", set[str]()),
        (["alias:*"], "prod", {"a", "b"}),
        (None, "prod", {"a", "b", "c", "d"}),
    ],
)
def test_a_key_for_an_alias_has_the_models_behind_it_in_requests_for_the_alias_alone(
    models: list[str] | None, asked: str, served: set[str]
) -> None:
    key = {"sha256": hashed(CANARY), "id": "laptop", "tenant": "acme"} | ({} if models is None else {"models": models})
    envelope = builders.preprocess_request(path="/v1/completions", headers={"x-api-key": CANARY}, received_ms=NOW_MS)
    body = parse(envelope.path, orjson.dumps({"model": asked, "prompt": "hi"}))
    incoming = Incoming(envelope, body, read_headers(envelope.headers))
    chain = [{"use": "api-key-auth", "keys": [key]}]
    # The identity of a key is shared by its requests: the second one is to see nothing of the first.
    pipeline = compile_pipeline(load(ALIASES | {"preprocessing": chain}))
    for each in (incoming, Incoming(envelope, body, read_headers(envelope.headers))):
        assert pipeline.run(each) is None
        allowed = allowed_models(each.attributes)
        assert {name for name in ("a", "b", "c", "d") if may_use(allowed, name)} == served


@pytest.mark.parametrize(
    ("headers", "code", "challenge"),
    [
        (None, "missing_api_key", 'Bearer realm="pointsman"'),
        ({"authorization": "Basic eDp5"}, "invalid_api_key", 'Bearer realm="pointsman", error="invalid_token"'),
        ({"authorization": f"Bearer {CANARY}x"}, "invalid_api_key", 'Bearer realm="pointsman", error="invalid_token"'),
        ({"x-api-key": "old"}, "invalid_api_key", 'Bearer realm="pointsman", error="invalid_token"'),
        ({"x-api-key": "off"}, "invalid_api_key", 'Bearer realm="pointsman", error="invalid_token"'),
    ],
)
def test_unknown_credentials_get_401_with_a_challenge(
    headers: dict[str, str] | None, code: str, challenge: str
) -> None:
    refusal, told = refused(headers, KEYS)
    assert (refusal.status, refusal.code, refusal.type, told) == (401, code, "invalid_request_error", challenge)


@pytest.mark.parametrize("header", [CANARY, f"Basic {CANARY}", f"Token {CANARY}", "Bearer"])
def test_a_key_without_the_word_before_it_is_refused_with_the_right_form(header: str) -> None:
    refusal, _ = refused({"authorization": header}, KEYS)
    said = "Incorrect API key or token provided. The Authorization header must begin with `Bearer `."
    assert (refusal.code, refusal.message) == ("invalid_api_key", said)


def test_a_client_without_credentials_is_anonymous_only_where_that_is_configured() -> None:
    anonymous = {"use": "anonymous", "tenant": "public", "models": ["group:own"]}
    identity = run(request(), KEYS, anonymous).read(IDENTITY)
    assert identity is not None
    assert (identity["tenant"], identity["models"], identity["source"]) == ("public", ["a", "b"], "anonymous")
    refusal, _ = refused({"x-api-key": "wrong"}, KEYS, anonymous)
    assert refusal.code == "invalid_api_key"
    own = KEYS | {"headers": ["X-Team-Pass"]}
    for entries in ((own,), (own, anonymous)):
        refusal, _ = refused({"x-team-pass": "wrong"}, *entries)
        assert (refusal.code, refusal.message) == ("invalid_api_key", "Incorrect API key or token provided.")
    assert run(request({"x-team-pass": "wrong"}), own | {"mode": "shadow"}, anonymous).read(IDENTITY) == identity


def test_a_credential_in_a_header_of_its_own_reaches_neither_engine_nor_rules() -> None:
    keys = KEYS | {"headers": ["X-Team-Pass"]}
    incoming = run(request({"x-team-pass": CANARY, "x-other": "1"}), keys)
    assert incoming.header("x-team-pass") is None
    assert incoming.headers.readable == {"x-other": "1"}
    kept = run(request({"x-team-pass": CANARY}), keys | {"forward": True})
    assert kept.header("x-team-pass") == CANARY


def test_scopes_are_needed_where_authorization_says_so() -> None:
    needs = {"use": "authorization", "scopes": ["chat", "admin"]}
    refusal, told = refused({"x-api-key": CANARY}, KEYS, needs)
    assert (refusal.status, refusal.code) == (403, "insufficient_scope")
    assert "admin" in refusal.message
    assert told == 'Bearer realm="pointsman", error="insufficient_scope", scope="chat admin"'
    run(request({"x-api-key": CANARY}), KEYS, needs | {"scopes": ["chat"]})
    run(request({"x-api-key": CANARY}), KEYS, needs | {"apis": ["embeddings"]})


class Stored(KeyStore):
    """In memory."""

    def __init__(self) -> None:
        self.table = KeyTable()
        self.followed = 0
        self.away: str | None = None

    def follow_keys(self) -> None:
        self.followed += 1

    def explain_missing(self) -> str | None:
        return self.away

    def find_key(self, digest: str) -> KeyFacts | None:
        return self.table.find_key(digest)

    def list_named(self, name: str) -> Collection[KeyFacts]:
        return self.table.list_named(name)


def test_stored_keys_count_from_when_they_are_there_until_they_are_gone() -> None:
    stored = Stored()
    entry = {"use": "api-key-auth", "stored": True}
    ports = Ports(stored)
    headers = {"x-api-key": CANARY}
    stored.away = "not read yet"
    with pytest.raises(Refusal) as caught:
        run(request(headers), entry, ports=ports)
    assert (caught.value.status, caught.value.code) == (503, "policy_unavailable")
    stored.away = None
    with pytest.raises(Refusal):
        run(request(headers), entry, ports=ports)
    stored.table.store_key(hashed(CANARY), KeyFacts(tenant="acme"))
    assert (run(request(headers), entry, ports=ports).read(IDENTITY) or {})["tenant"] == "acme"
    stored.table.remove(hashed(CANARY))
    with pytest.raises(Refusal):
        run(request(headers), entry, ports=ports)
    assert stored.followed > 0
    assert len(stored.table) == 0


def test_a_line_is_refused_once_the_key_of_its_batch_is_gone_or_no_longer_valid() -> None:
    stored = Stored()
    ports = Ports(stored)

    def code_of(key: str, *entries: dict[str, object], source: str = "api-key-auth") -> str | None:
        incoming = request({})
        incoming.attributes[IDENTITY.name] = {"tenant": "acme", "key": key, "source": source, "batch": "batch_1"}
        try:
            run(incoming, *entries, ports=ports)
        except Refusal as refusal:
            return refusal.code
        return None

    entry: dict[str, object] = {"use": "api-key-auth", "stored": True}
    assert code_of("ci", entry) == KEY_REVOKED
    stored.table.store_key(hashed(CANARY), KeyFacts(id="ci", tenant="acme"))
    stored.table.store_key(hashed("other"), KeyFacts(id="ci", tenant="acme", disabled=True))
    assert code_of("ci", entry) is None
    stored.table.remove(hashed(CANARY))
    assert code_of("ci", entry) == KEY_REVOKED
    stored.away = "not read yet"
    assert code_of("ci", entry) == "policy_unavailable"
    # Keys of the configuration, and identities that no key proved.
    assert code_of("laptop", KEYS) is None
    assert code_of("old", KEYS) == KEY_REVOKED
    assert code_of("removed", KEYS) == KEY_REVOKED
    assert code_of("removed", KEYS, source="queue") is None


RSA: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC: Final = ec.generate_private_key(ec.SECP256R1())
ISSUER: Final = "https://id.example"


def jwk(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, kid: str | None, **more: object) -> dict[str, object]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    document: dict[str, object] = json.loads(algorithm.to_jwk(key.public_key()))  # pyright: ignore[reportArgumentType, reportUnknownMemberType]
    document.pop("key_ops", None)
    return document | ({} if kid is None else {"kid": kid}) | more


JWT: Final[dict[str, object]] = {
    "use": "jwt-auth",
    "issuer": ISSUER,
    "audience": ["gateway"],
    "keys": [jwk(RSA, "r1"), jwk(EC, "e1")],
    "claims": {"tenant": "org.id", "plan": "https://acme.example/plan"},
}
CLAIMS: Final[dict[str, JsonValue]] = {
    "iss": ISSUER,
    "aud": "gateway",
    "sub": "ada",
    "exp": NOW + 600,
    "org": {"id": "acme"},
    "https://acme.example/plan": "gold",
    "scope": "chat embeddings",
    "models": ["group:own"],
    "limits": {"requests": "5/s"},
}


def token(algorithm: str = "RS256", kid: str | None = "r1", key: object = RSA, **changes: JsonValue) -> str:
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not None}
    return jwt.encode(claims, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid})  # pyright: ignore[reportArgumentType]


def nested(levels: int) -> JsonValue:
    value: JsonValue = 1
    for _ in range(levels):
        value = [value]
    return value


def bearing(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.mark.requirement("S3-8")
@pytest.mark.parametrize(
    "text", [token(), token("ES256", "e1", EC), token(exp=NOW - 20), token(nbf=NOW + 20), token(iat=NOW + 20)]
)
def test_a_valid_token_is_an_identity_by_the_mapping_of_its_claims(text: str) -> None:
    incoming = run(request(bearing(text)), JWT)
    assert incoming.read(IDENTITY) == {
        "tenant": "acme",
        "subject": "ada",
        "plan": "gold",
        "scopes": ["chat", "embeddings"],
        "models": ["a", "b"],
        "limits": {"requests": "5/s"},
        "source": "jwt-auth",
    }
    assert [(v.processor, v.note) for v in incoming.verdicts] == [("jwt-auth", "token, tenant acme")]


OTHER: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC_TEXT: Final = str(jwk(RSA, "r1")["n"]).encode()


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (token(exp=NOW - 31), "token_expired", "has expired"),
        (token(exp=None), "invalid_token", "no time of expiry"),
        (token(nbf=NOW + 31), "invalid_token", "isn't valid yet"),
        (token(iat=NOW + 31), "invalid_token", "issued in the future"),
        (token(kid=None), "invalid_token", "names no key"),
        (token("ES256", None, EC), "invalid_token", "names no key"),
        (token(org={"id": 7}), "invalid_token", "the claim org.id isn't a text"),
        (token(org={"id": 0}), "invalid_token", "the claim org.id isn't a text"),
        (token(aud="elsewhere"), "invalid_token", "another audience"),
        (token(aud=None), "invalid_token", "has no `aud`"),
        (token(key=OTHER), "invalid_token", "signature"),
        (token("ES256", "r1", EC), "invalid_token", "that key's algorithm"),
        (token("RS512", "r1"), "invalid_token", "that key's algorithm"),
        (token("HS256", "r1", PUBLIC_TEXT), "invalid_token", "that key's algorithm"),
        (token("none", "r1", None), "invalid_token", "that key's algorithm"),
        (token(kid="unknown"), "invalid_token", "a known key"),
        (token(models=7), "invalid_token", "the claim models isn't a list of texts"),
        (token(models=[f"m{n:040}" for n in range(100)]), "invalid_token", "at most 2048 can travel"),
        (token(limits={"tokens": 10**30}), "invalid_token", "`limits`: Integer exceeds 64-bit range"),
        (token(limits={"tokens": nested(300)}), "invalid_token", "`limits`: Recursion limit reached"),
        (token() + "x", "invalid_token", "signature"),
    ],
)
def test_a_token_of_the_issuer_that_is_not_valid_gets_401_and_says_why(text: str, code: str, words: str) -> None:
    refusal, challenge = refused(bearing(text), JWT)
    assert (refusal.status, refusal.code) == (401, code)
    assert words in refusal.message
    assert text not in refusal.message
    assert challenge is not None
    assert 'error="invalid_token"' in challenge


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
def test_a_time_that_no_clock_can_show_is_none(claim: str) -> None:
    text = jwt.encode(CLAIMS | {claim: 10**400}, RSA, algorithm="RS256")
    with pytest.raises(TokenRefused, match=f"`{claim}` isn't a time"):
        verified(text, PyJWK(jwk(RSA, None)), ExpectedClaims(ISSUER, ("gateway",), 0), NOW)


def test_a_token_that_names_no_key_is_checked_with_the_only_one_of_its_issuer() -> None:
    assert run(request(bearing(token(kid=None))), JWT | {"keys": [jwk(RSA, "r1")]}).read(IDENTITY) is not None


def test_the_first_processor_that_recognises_a_credential_names_the_identity() -> None:
    other = JWT | {
        "name": "partners",
        "issuer": "https://partner.example",
        "tenant": "partner",
        "claims": {"plan": "p"},
    }
    chain = (KEYS, other, JWT)
    by_key, by_token = run(request({"x-api-key": CANARY}), *chain), run(request(bearing(token())), *chain)
    assert (by_key.read(IDENTITY) or {})["source"] == "api-key-auth"
    assert (by_token.read(IDENTITY) or {})["source"] == "jwt-auth"
    partner = run(request(bearing(token(iss="https://partner.example"))), *chain).read(IDENTITY) or {}
    assert (partner["source"], partner["tenant"]) == ("partners", "partner")
    refusal, _ = refused(bearing(token(iss="https://elsewhere.example")), *chain)
    assert refusal.code == "invalid_api_key"


def test_a_token_without_what_is_required_is_refused() -> None:
    refusal, _ = refused(bearing(token(org=None)), JWT | {"required": ["tenant"]})
    assert refusal.message == "The token names no tenant."


def test_a_token_that_was_checked_is_not_checked_again_until_it_expires() -> None:
    pipeline = compile_pipeline(load(SECTIONS | {"preprocessing": [JWT | {"leeway": 0, "remember": "1h"}]}))
    headers = bearing(token(exp=NOW + 1))
    for _ in range(2):
        incoming = request(headers)
        assert pipeline.run(incoming) is None
        assert incoming.read(IDENTITY) is not None
    late = request(headers)
    late.envelope = replace(late.envelope, received_ms=NOW_MS + 1000)
    with pytest.raises(Refusal, match="expired"):
        pipeline.run(late)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"jwks": None, "keys": []}, "write either `jwks` or `keys`"),
        ({"jwks": "http://id.example/keys", "keys": []}, "must begin with https://"),
        ({"jwks": "https://me:pw@id.example/keys", "keys": []}, "no user and no password"),
        ({"jwks": "https://169.254.169.254/keys", "keys": [], "private": True}, "metadata services are never asked"),
        ({"jwks": "https://10.0.0.9/keys", "keys": []}, "`private: true` allows it"),
        ({"jwks": "https://keycloak.auth.svc/keys", "keys": []}, "`private: true` allows it"),
        ({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "s"}]}, "a key isn't for"),
        ({"required": ["groups"]}, "there are tenant, subject, plan"),
    ],
)
def test_a_wrong_issuer_is_reported_when_the_file_is_checked(params: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(load({"preprocessing": [JWT | params]}))


@given(st.text(max_size=60) | st.lists(st.text(max_size=12), min_size=3, max_size=3).map(".".join))
@settings(max_examples=50, deadline=None)
def test_no_text_in_the_place_of_a_token_breaks_authentication(text: str) -> None:
    incoming = request({"authorization": f"Bearer {text}"})
    with pytest.raises(Refusal) as caught:
        ANY_TOKEN.run(incoming)
    assert caught.value.status == 401


ANY_TOKEN: Final = compile_pipeline(load(SECTIONS | {"preprocessing": [KEYS, JWT]}))


@given(st.dictionaries(st.sampled_from([*list(CLAIMS)[1:], "nbf", "iat", "jti"]), JSON, max_size=4))
@settings(max_examples=50, deadline=None)
def test_whatever_claims_say_a_token_is_an_identity_or_gets_401(claims: dict[str, JsonValue]) -> None:
    incoming = request(bearing(token("ES256", "e1", EC, **claims)))
    status = 200
    try:
        ANY_TOKEN.run(incoming)
    except Refusal as refusal:
        status = refusal.status
    identity = incoming.read(IDENTITY)
    assert status == (401 if identity is None else 200)
    assert identity is None or isinstance(identity["tenant"], str)
