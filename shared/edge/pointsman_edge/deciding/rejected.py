"""A stage's rejection as the error that the client gets."""

from pointsman_contracts.reply import STAGE_UNAVAILABLE, Rejection
from pointsman_core.refusal import Refusal


def refusal_of(rejection: Rejection) -> Refusal:
    """Its words; a status that isn't an error's becomes 500. A rejection that gives no reason for its header is told
    by its stage."""
    reason = "rejected-unavailable" if rejection.code == STAGE_UNAVAILABLE else f"rejected-by-{rejection.stage}"
    return Refusal(
        rejection.status if 400 <= rejection.status <= 599 else 500,
        rejection.message,
        type=rejection.type,
        code=rejection.code,
        param=rejection.param,
        retry_after_s=rejection.retry_after_s,
        dropped_reason=rejection.dropped_reason or reason,
    )
