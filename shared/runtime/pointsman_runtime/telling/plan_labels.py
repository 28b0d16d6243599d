"""Plans of clients as a label of metrics."""

from typing import Final

PLANS: Final = 50
"""Plans with a label of their own; they come from credentials, and each makes a series."""
OTHER: Final = "other"


class PlanLabels:
    """The plan labels of one process: the first plans that come have a label of their own."""

    def __init__(self) -> None:
        self._known: Final[set[str]] = set()

    def label_of(self, plan: str) -> str:
        """The label; empty for an unknown client."""
        if plan in self._known:
            return plan
        if len(self._known) >= PLANS:
            return OTHER
        self._known.add(plan)
        return plan
