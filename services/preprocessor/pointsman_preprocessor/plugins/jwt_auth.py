"""`jwt-auth`: identifies clients by signed tokens of one issuer."""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import Field, JsonValue, model_validator

from pointsman_core.config import Config
from pointsman_core.references import HttpUrl
from pointsman_core.units import Duration
from pointsman_core.url_addresses import check_url
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import IDENTITY, Incoming, Ports, RequestProcessor, Unavailable
from pointsman_preprocessor.domain.admission import unauthorized
from pointsman_preprocessor.domain.claims import ClaimNames, grant_of
from pointsman_preprocessor.domain.credentials import bearer
from pointsman_preprocessor.domain.identities import ModelGroups, identity_of
from pointsman_preprocessor.domain.key_sets import ALGORITHMS, KeySet, KeySets
from pointsman_preprocessor.domain.tokens import ExpectedClaims, TokenHead, TokenRefused, head_of, verified

_KEPT: Final = 8192
"""Most tokens whose verification is cached."""
_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


class JwtAuthParams(Params):
    """The issuer, and the required claims."""

    issuer: str = Field(min_length=1)
    """The exact `iss` of its tokens. Tokens of other issuers are left to later processors."""
    audience: tuple[str, ...] = ()
    """The `aud` must have one of these; default: any audience."""
    jwks: HttpUrl | None = None
    """URL of the issuer's keys."""
    private: bool = False
    """`jwks` may lead to a private address."""
    plaintext: bool = False
    """Allow `http://` for the keys of another host."""
    keys: tuple[dict[str, JsonValue], ...] = ()
    """The issuer's public keys themselves (JWK), instead of `jwks`."""
    leeway: Duration = 30.0
    """Maximum difference between clocks."""
    claims: ClaimNames = ClaimNames()
    tenant: str = ""
    """Tenant of tokens without one."""
    required: tuple[str, ...] = ()
    """Parts of the identity that a token must have: `tenant`, `subject`, `plan`."""
    remember: Duration = 60.0
    """How long a verified token isn't verified again; at most until it expires or the keys change."""
    forward: bool = False
    """Leave the header to the engine; the edge forwards it only when it is configured to as well."""

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if (self.jwks is None) == (not self.keys):
            raise ValueError("write either `jwks` or `keys`")
        if self.jwks is not None:
            parts = urlsplit(self.jwks)
            local = parts.hostname in _LOCAL
            if parts.scheme != "https" and not (parts.scheme == "http" and (local or self.plaintext)):
                raise ValueError(
                    "jwks: must begin with https://; set `plaintext: true` to use http:// on a network that you trust"
                )
            check_url(self.jwks, private=self.private)
        if self.keys and len(KeySet(self.keys)) < len(self.keys):
            raise ValueError(f"keys: a key isn't for {', '.join(sorted(ALGORITHMS))}")
        unknown = set(self.required) - {"tenant", "subject", "plan"}
        if unknown:
            raise ValueError(f"required: {', '.join(sorted(unknown))}; there are tenant, subject, plan")
        return self


class _Checked(NamedTuple):
    identity: dict[str, JsonValue]
    until_s: float
    keys: KeySet


class JwtAuth(RequestProcessor[JwtAuthParams]):
    """Produces the identity of a valid token: signed by a key of its issuer with that key's own algorithm, not expired,
    for this audience. An invalid token that names this issuer is rejected with 401."""

    type_name = "jwt-auth"
    produces = (IDENTITY,)
    authenticates = True

    def setup(self) -> None:
        self._expected = ExpectedClaims(self.params.issuer, self.params.audience, self.params.leeway)
        self._own = KeySet(self.params.keys) if self.params.keys else None
        self._sets: KeySets | None = None
        self._groups = ModelGroups()
        self._checked: OrderedDict[bytes, _Checked] = OrderedDict()

    def bind(self, config: Config) -> None:
        self._groups = ModelGroups(config)

    def connect(self, ports: Ports) -> None:
        if self.params.jwks is not None:
            self._sets = ports.find(KeySets)
            if self._sets is not None:
                self._sets.follow_set(self.params.jwks, private=self.params.private)

    def process(self, incoming: Incoming) -> Awaitable[None] | None:
        if incoming.read(IDENTITY) is not None:
            return None
        token = bearer(incoming.envelope.headers)
        if token is None:
            return None
        keys = self._keys()
        now_s = incoming.envelope.received_ms / 1000
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._checked.get(digest)
        if known is not None and known.until_s > now_s and known.keys is keys:
            self._recognised(incoming, known.identity)
            return None
        head = head_of(token)
        if head is None or head.issuer != self.params.issuer:
            return None
        if keys is None or not keys.has_key(head.kid):
            waiting = None if self._sets is None else self._sets.refresh_set(self.params.jwks or "")
            if waiting is not None:
                return self._check_anew(waiting, incoming, token, head, digest)
        self._check(incoming, token, head, digest)
        return None

    async def _check_anew(
        self, waiting: Awaitable[None], incoming: Incoming, token: str, head: TokenHead, digest: bytes
    ) -> None:
        await waiting
        self._check(incoming, token, head, digest)

    def _check(self, incoming: Incoming, token: str, head: TokenHead, digest: bytes) -> None:
        keys = self._keys()
        if keys is None:
            raise Unavailable(f"the keys of {self.params.issuer} aren't known")
        key = keys.find_key(head.kid, head.algorithm)
        now_s = incoming.envelope.received_ms / 1000
        if key is None:
            text = "The token isn't signed by a known key of its issuer with that key's algorithm."
            if head.kid is None and len(keys) > 1:
                text = "The token names no key (`kid`), and its issuer has several."
            raise unauthorized(incoming, text, "invalid_token")
        try:
            claims = verified(token, key, self._expected, now_s)
            grant = grant_of(claims, self.params.claims, self.params.tenant)
            identity = identity_of(grant, self.name, self._groups)
        except TokenRefused as refused:
            raise unauthorized(incoming, str(refused), refused.code) from refused
        except ValueError as error:
            raise unauthorized(incoming, f"The token can't be used: {error}.", "invalid_token") from error
        lacking = [part for part in self.params.required if not getattr(grant, part)]
        if lacking:
            raise unauthorized(incoming, f"The token names no {' and no '.join(lacking)}.", "invalid_token")
        expires = claims.get("exp")
        until_s = min(now_s + self.params.remember, float(expires) if isinstance(expires, int | float) else now_s)
        self._checked[digest] = _Checked(identity, until_s, keys)
        while len(self._checked) > _KEPT:
            self._checked.popitem(last=False)
        self._recognised(incoming, identity)

    def _recognised(self, incoming: Incoming, identity: dict[str, JsonValue]) -> None:
        if not self.params.forward:
            incoming.hide_header("authorization")
        incoming.write(IDENTITY, dict(identity))
        incoming.say(f"token, tenant {identity['tenant']}" if identity["tenant"] else "token")

    def _keys(self) -> KeySet | None:
        if self._own is not None:
            return self._own
        return None if self._sets is None else self._sets.get(self.params.jwks or "")
