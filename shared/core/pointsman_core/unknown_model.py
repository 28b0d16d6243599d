"""The 404 for an unknown model."""

import difflib
from collections.abc import Sequence
from typing import Final

from pointsman_core.refusal import Refusal

NAMED: Final = 50
"""Known models that are listed at most."""
SHOWN: Final = 100
"""Characters of the name asked for that are repeated."""


def unknown_model(name: str, known: Sequence[str]) -> Refusal:
    """404 that names the likely model and the known ones: those that the client may use."""
    asked = name[:SHOWN]
    likely = difflib.get_close_matches(asked, known, n=1)
    hint = f" Did you mean '{likely[0]}'?" if likely else ""
    listed = ", ".join(known[:NAMED]) or "none"
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return Refusal(
        404,
        f"The model '{asked}' does not exist.{hint} Known models: {listed}{more}.",
        code="model_not_found",
        param="model",
    )
