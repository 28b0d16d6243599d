"""Sets of public keys (RFC 7517) for checking tokens."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

import orjson

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""Signatures with key pairs. A service that checks tokens must not be able to make them: nothing symmetric, and never
`none`."""


class KeySet:
    """Keys by their id. Each belongs to one algorithm: its own `alg`, or what its type is usually used with."""

    def __init__(self, keys: Iterable[Mapping[str, object]]) -> None:
        """Leaves out keys that aren't for signatures of `ALGORITHMS`."""
        self._named: Final[dict[str, PyJWK]] = {}
        self._nameless: Final[list[PyJWK]] = []
        for document in keys:
            key = _key(document)
            if key is None:
                continue
            kid = document.get("kid")
            if isinstance(kid, str):
                self._named[kid] = key
            else:
                self._nameless.append(key)

    def find_key(self, kid: str | None, algorithm: str) -> "PyJWK | None":
        """The key that a token names, or the only one of the set when it names none; None for a token that claims
        another algorithm than the key's."""
        if kid is not None and kid in self._named:
            found = [self._named[kid]]
        elif kid is None:
            found = [*self._named.values(), *self._nameless]
            if len(found) > 1:
                return None
        else:
            found = self._nameless
        fitting = [key for key in found if key.algorithm_name == algorithm]
        return fitting[0] if len(fitting) == 1 else None

    def has_key(self, kid: str | None) -> bool:
        """Whether the set has a key of this id; for a token that names none, whether it has any key."""
        return kid in self._named if kid is not None else len(self) > 0

    def __len__(self) -> int:
        return len(self._named) + len(self._nameless)


def parse_key_set(data: bytes) -> KeySet:
    """Raises ValueError for a set without a usable key, or an invalid one."""
    document = cast("object", orjson.loads(data))
    keys = cast("Mapping[str, object]", document).get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise ValueError("it isn't a JSON object with a list `keys`")  # noqa: TRY004 - the text is wrong, not a type
    listed = [cast("Mapping[str, object]", key) for key in cast("list[object]", keys) if isinstance(key, dict)]
    found = KeySet(listed)
    if not len(found):
        raise ValueError(f"none of its keys is for {', '.join(sorted(ALGORITHMS))}")
    return found


def prepare() -> None:
    """Load the cryptography modules: takes 0.1 s, so only processes with keys do it, and before the keys come."""
    importlib.import_module("jwt")


class KeySets(ABC):
    """Key sets that issuers publish."""

    @abstractmethod
    def follow_set(self, url: str, *, private: bool) -> None:
        """Keep the set at this address at hand and fresh. `private`: it may lead to a private address."""

    @abstractmethod
    def get(self, url: str) -> KeySet | None:
        """The set as it was last read; None before it was."""

    @abstractmethod
    def refresh_set(self, url: str) -> Awaitable[None] | None:
        """Read the set now, for a key that isn't in it; None when that was done recently. Failures are logged, and the
        last set stays."""


def _key(document: Mapping[str, object]) -> "PyJWK | None":
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    if document.get("use", "sig") != "sig" or document.get("kty") == "oct":
        return None
    try:
        key = PyJWK(dict(document))
    except PyJWTError:
        return None
    return key if key.algorithm_name in ALGORITHMS else None
