"""The command's wording: counts of things, times, and errors with a reason and advice."""

from datetime import UTC, datetime


class CommandError(Exception):
    """The command ends with status 1 and this text. `advice` is the remedy."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice


def moment(unix_ms: int) -> str:
    """E.g. `2026-03-01 12:30:05 UTC`."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def counted(number: int, noun: str) -> str:
    """E.g. `1 pool`, `2,000 pools`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
