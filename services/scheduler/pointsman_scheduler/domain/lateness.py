"""The error of a request that is refused because it would miss its service level."""

import math
from typing import Final

from pointsman_contracts.journey import RequestFacts
from pointsman_contracts.service_level import UNATTAINABLE
from pointsman_core.refusal import Refusal

PROBE_EVERY_S: Final = 2.0
"""When nothing went to an engine for this long, the next request that would be refused goes: only answers show that a
prediction has become wrong."""
LONGEST_RETRY_S: Final = 30.0
"""A wrong prediction keeps no client away for longer."""


def refuse_late(facts: RequestFacts, predicted_ms: float) -> Refusal:
    """429 for a request whose first token is predicted so many milliseconds after it was received."""
    promised_ms = facts.slo_ttft_ms or 0.0
    after_s = math.ceil((predicted_ms - promised_ms) / 1000.0)
    return Refusal(
        429,
        f"The first token is predicted after {predicted_ms:.0f} ms; the service level {facts.slo_class!r} is "
        f"{promised_ms:.0f} ms. Retry later, or ask for a longer time.",
        type="rate_limit_error",
        code=UNATTAINABLE,
        retry_after_s=float(min(LONGEST_RETRY_S, max(1, after_s))),
        dropped_reason="rejected-slo-unattainable",
    )
