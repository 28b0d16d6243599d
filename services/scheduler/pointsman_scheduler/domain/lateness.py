"""The errors of requests that are refused because they would miss their service levels."""

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
    why = f"The first token is predicted after {predicted_ms:.0f} ms; the service level {facts.slo_class!r} is"
    return _refuse(f"{why} {promised_ms:.0f} ms", math.ceil((predicted_ms - promised_ms) / 1000.0))


def refuse_slow(facts: RequestFacts, token_ms: float) -> Refusal:
    """429 for a request whose tokens are predicted so many milliseconds apart. When that gets better isn't known."""
    why = f"{token_ms:.3g} ms are predicted between tokens; the service level {facts.slo_class!r} is"
    return _refuse(f"{why} {facts.slo_itl_ms:g} ms", LONGEST_RETRY_S)


def _refuse(why: str, after_s: float) -> Refusal:
    return Refusal(
        429,
        f"{why}. Retry later, or ask for a longer time.",
        type="rate_limit_error",
        code=UNATTAINABLE,
        retry_after_s=float(min(LONGEST_RETRY_S, max(1, after_s))),
        dropped_reason="rejected-slo-unattainable",
    )
