"""Stored configurations as a page shows them: the keys that each changed, and the lines. Pure.

Hashes of keys are shortened: a page that is shown to others needn't have them.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from difflib import unified_diff
from typing import Final, NamedTuple

from pydantic import JsonValue

from pointsman_core.config import Config, ConfigError
from pointsman_core.config.changes import changes

_HASH: Final = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{56}\b")
Parse = Callable[[str], Config]


class KeptRevision(NamedTuple):
    """One revision."""

    revision: int
    text: str
    at: datetime


def listed(revisions: Sequence[KeptRevision], parse: Parse) -> list[JsonValue]:
    """The newest first, each with how many keys it changed."""
    found: list[JsonValue] = []
    before: Config | None = None
    for stored in revisions:
        config, problem = _readable(stored.text, parse)
        count = len(changes(before, config)) if before is not None else None
        found.append(
            {
                "revision": stored.revision,
                "at_ms": round(stored.at.timestamp() * 1000),
                "policy": config.policy_hash() if not problem else "",
                "problem": problem,
                "changed": count,
            }
        )
        before = config
    return found[::-1]


def shown(
    revisions: Sequence[KeptRevision], number: int, against: int | None, parse: Parse
) -> dict[str, JsonValue] | None:
    """One revision, and what differs from another one (the one before it); None for an unknown number."""
    position = next((place for place, stored in enumerate(revisions) if stored.revision == number), None)
    if position is None:
        return None
    stored = revisions[position]
    other = revisions[position - 1] if position else None
    if against is not None:
        other = next((each for each in revisions if each.revision == against), None)
    after = _readable(stored.text, parse)[0]
    keys: list[JsonValue] = []
    lines: list[JsonValue] = []
    if other is not None:
        keys = [change.path for change in changes(_readable(other.text, parse)[0], after)]
        differing = unified_diff(other.text.splitlines(), stored.text.splitlines(), lineterm="", n=2)
        # The first two lines name files.
        lines = [_shortened(line) for line in list(differing)[2:]]
    return {
        "revision": number,
        "against": None if other is None else other.revision,
        "keys": keys,
        "lines": lines,
        "text": _shortened(stored.text),
    }


def _readable(text: str, parse: Parse) -> tuple[Config, str]:
    """The configuration, or an empty one and why this version can't read it."""
    try:
        return parse(text), ""
    except ConfigError as error:
        return Config(), str(error).splitlines()[0]


def _shortened(text: str) -> str:
    return _HASH.sub(r"\1…", text)
