"""Which answers are kept."""

from typing import Final

from pointsman_apis import named
from pointsman_contracts.response_stage import ResponseReview
from pointsman_core.config import Cache
from pointsman_semantic_cache.domain.policy import GUARD
from pointsman_semantic_cache.domain.worth import unworthy

_OK: Final = 200
_OBJECTIONS: Final = frozenset({"replaced", "blocked"})
"""Outcomes of a guard that changed or withheld an answer."""


def refusal(review: ResponseReview, cache: Cache, *, guarded: bool) -> str | None:
    """Why an answer isn't kept, in a word; None when it may be. `guarded`: a guard has to have let it pass."""
    if review.status != _OK or review.outcome != "ok":
        return "error"
    if review.truncated or review.body is None:
        return "no body"
    if len(review.body) > cache.max_answer:
        return "too large"
    said = [report.outcome for report in review.stages if report.stage == GUARD]
    # A changed answer was changed for what was in this one, or for this client.
    if any(outcome in _OBJECTIONS for outcome in said):
        return "guard"
    # A guard in shadow may fail: an unchecked answer is checked when it is given again.
    if guarded and (not said or any(outcome != "passed" for outcome in said)):
        return "guard"
    return unworthy(
        named(review.api), review.body, stream=review.stream, tool_calls=cache.tool_calls, cut_short=cache.cut_short
    )
