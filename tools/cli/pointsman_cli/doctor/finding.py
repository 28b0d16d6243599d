"""One line of `pointsman doctor`'s report."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class DiagnosisLine:
    """One line of the diagnosis."""

    level: Level
    what: str
    advice: str = ""


def ok(what: str) -> DiagnosisLine:
    """As it should be."""
    return DiagnosisLine(Level.OK, what)


def warn(what: str, advice: str) -> DiagnosisLine:
    """Worth a look."""
    return DiagnosisLine(Level.WARN, what, advice)


def fail(what: str, advice: str) -> DiagnosisLine:
    """A finding that an operator must fix."""
    return DiagnosisLine(Level.FAIL, what, advice)
