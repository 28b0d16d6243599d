"""One line of what `pointsman doctor` says."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a finding is meant."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    level: Level
    what: str
    advice: str = ""


def ok(what: str) -> Finding:
    """As it should be."""
    return Finding(Level.OK, what)


def warn(what: str, advice: str) -> Finding:
    """Worth a look."""
    return Finding(Level.WARN, what, advice)


def fail(what: str, advice: str) -> Finding:
    """Somebody must mend it."""
    return Finding(Level.FAIL, what, advice)
