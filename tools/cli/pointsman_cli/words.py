"""The command's wording: counts of things, and errors with a reason and advice."""


class CommandError(Exception):
    """The command ends with status 1 and this text. `advice` is the remedy."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice


def counted(number: int, noun: str) -> str:
    """E.g. `1 pool`, `2,000 pools`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
