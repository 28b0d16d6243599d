"""Signed tokens (RFC 7519): reads the unverified claims, and verifies them."""

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import orjson
from pydantic import JsonValue

if TYPE_CHECKING:
    from jwt import PyJWK

_OPTIONS: Final = {
    "verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_iss": False, "verify_sub": False,
    "verify_jti": False,
}  # fmt: skip
"""Times are checked here, by the clock of the request; the mapping interprets the claims."""


class TokenHead(NamedTuple):
    """The unverified claims of a token."""

    algorithm: str
    kid: str | None
    issuer: str | None


class TokenRefused(Exception):
    """A token isn't valid. The text is for its sender."""

    def __init__(self, message: str, code: str = "invalid_token") -> None:
        super().__init__(message)
        self.code: Final = code


class ExpectedClaims(NamedTuple):
    """The claims that a valid token must have."""

    issuer: str
    audience: Sequence[str]
    """One of these audiences; empty for any."""
    leeway_s: float


def head_of(token: str) -> TokenHead | None:
    """None for a text that isn't a signed token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        header = cast("object", orjson.loads(_decoded(parts[0])))
        claims = cast("object", orjson.loads(_decoded(parts[1])))
    except ValueError:
        return None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        return None
    named = cast("Mapping[str, object]", header)
    algorithm, kid = named.get("alg"), named.get("kid")
    issuer = cast("Mapping[str, object]", claims).get("iss")
    if not isinstance(algorithm, str):
        return None
    return TokenHead(algorithm, kid if isinstance(kid, str) else None, issuer if isinstance(issuer, str) else None)


def verified(token: str, key: "PyJWK", expected: ExpectedClaims, now_s: float) -> dict[str, JsonValue]:
    """The claims of a valid token. `now_s`: unix time. Raises TokenRefused."""
    # Loaded with the first key: `key_sets.prepare`.
    import jwt

    try:
        claims = cast(
            "dict[str, JsonValue]",
            jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=list(expected.audience) or None,
                options={**_OPTIONS, "verify_aud": bool(expected.audience)},  # pyright: ignore[reportArgumentType] - its TypedDict wants every key
            ),
        )
    except jwt.InvalidAudienceError as error:
        raise TokenRefused("The token is for another audience.") from error
    except jwt.MissingRequiredClaimError as error:
        raise TokenRefused(f"The token has no `{error.claim}`.") from error
    except jwt.PyJWTError as error:
        # The error's text may quote the token.
        raise TokenRefused("The token's signature isn't valid.") from error
    if claims.get("iss") != expected.issuer:
        raise TokenRefused("The token is of another issuer.")
    expires = _time(claims, "exp")
    if expires is None:
        raise TokenRefused("The token has no time of expiry (`exp`).")
    if expires <= now_s - expected.leeway_s:
        raise TokenRefused("The token has expired.", "token_expired")
    begins = _time(claims, "nbf")
    if begins is not None and begins > now_s + expected.leeway_s:
        raise TokenRefused("The token isn't valid yet.")
    issued = _time(claims, "iat")
    if issued is not None and issued > now_s + expected.leeway_s:
        raise TokenRefused("The token was issued in the future (`iat`).")
    return claims


def _time(claims: Mapping[str, JsonValue], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"The token's `{name}` isn't a time.")
    try:
        return float(value)
    except OverflowError as error:
        raise TokenRefused(f"The token's `{name}` isn't a time.") from error


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
