"""The table that the test prints."""

import sys
from typing import Final

MARKS: Final = {True: "held", False: "MISSED"}


class Table:
    """Rows of shape, step, whether it held, and figures; printed as they come and as Markdown at the end."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, bool, str]] = []

    def add(self, shape: str, step: str, held: bool, result: str) -> None:
        """Add a row and print it."""
        self._rows.append((shape, step, held, " ".join(result.split())))
        sys.stdout.write(f"{MARKS[held]:7} {shape}: {step}: {self._rows[-1][3][:400]}\n")
        sys.stdout.flush()

    @property
    def missed(self) -> int:
        """Rows that didn't hold."""
        return sum(not held for _, _, held, _ in self._rows)

    def markdown(self) -> str:
        """The whole table."""
        lines = ["| values | step | | result |", "|---|---|---|---|"]
        lines += [f"| {shape} | {step} | {MARKS[held]} | {result[:160]} |" for shape, step, held, result in self._rows]
        return "\n".join(lines) + "\n"
