"""The question of a request, reduced to the parts that decide its answer."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import orjson

from pointsman_apis import named
from pointsman_apis.last_turn import last_turn
from pointsman_contracts.journey import BodyEdit, edited
from pointsman_core.fingerprint import deciding, fingerprint

Document = dict[str, object]


class CacheQuestion(NamedTuple):
    """One request."""

    exact: bytes
    """Same as `RequestFacts.fingerprint`."""
    context: bytes
    """The same without the words of the last turn."""
    turn: str
    """The user's last message; empty where only the very same request may have the same answer: images, results of
    tools, several prompts, vectors."""


def asked(api: str, body: bytes, edits: Sequence[BodyEdit]) -> CacheQuestion | None:
    """The question in a body after the gateway's edits; None for a body that isn't a JSON object."""
    try:
        parsed = cast("object", orjson.loads(body))
    except orjson.JSONDecodeError:
        return None
    if not isinstance(parsed, dict):
        return None
    kept = deciding(edited(cast("Document", parsed), edits))
    exact = fingerprint(api, kept)
    member = named(api).conversation
    turn, rest = last_turn(kept.get(member))
    if not turn:
        return CacheQuestion(exact, b"", "")
    return CacheQuestion(exact, fingerprint(api, {**kept, member: rest}), turn)
