"""Which headers and which members of the query of a client's request its provider gets."""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_plus

from pointsman_core.header_names import is_credential
from pointsman_providers.exchange import FromClient

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_TRACEPARENT: Final = "traceparent"
_BETA: Final = "anthropic-beta"
_OF_ACCOUNTS: Final = "oauth-"
"""The beginning of betas that concern the client's own credential, which isn't sent."""


class ClientParts:
    """The parts that one provider gets, by their names."""

    def __init__(self, headers: Iterable[str], query: Iterable[str]) -> None:
        """A name of a header that ends in `*` matches every ending. Names of credentials match nothing."""
        names = [name.lower() for name in headers]
        self._names = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
        self._query = frozenset(query)

    def parts_of(self, headers: Iterable[tuple[bytes, bytes]], query: bytes, traceparent: str | None) -> FromClient:
        """The parts of one request. `headers`: the client's, as stages changed them, names in lower case; `query`:
        without a question mark; `traceparent`: of the gateway's own span."""
        found: dict[str, str] = {}
        for raw, value in headers:
            name = raw.decode("latin-1")
            if (name in self._names or name.startswith(self._prefixes)) and not is_credential(name):
                text = _CONTROL.sub(" ", value.decode("utf-8", "replace"))
                found[name] = f"{found[name]}, {text}" if name in found else text
        if _BETA in found:
            betas = [beta.strip() for beta in found.pop(_BETA).split(",")]
            kept = ",".join(beta for beta in betas if beta and not beta.startswith(_OF_ACCOUNTS))
            if kept:
                found[_BETA] = kept
        if traceparent is not None and _TRACEPARENT in self._names:
            found[_TRACEPARENT] = traceparent
        return FromClient(found, self._members(query))

    def _members(self, query: bytes) -> str:
        if not query or not self._query:
            return ""
        members = query.decode("ascii", "replace").split("&")
        return "&".join(
            member
            for member in members
            if (name := unquote_plus(member.partition("=")[0])) in self._query and not is_credential(name)
        )


def with_query(path: str, query: str) -> str:
    """The path with the client's part of the query."""
    if not query:
        return path
    return f"{path}{'&' if '?' in path else '?'}{query}"
