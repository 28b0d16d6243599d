"""The end of a request, for its edge."""

from pointsman_contracts.journey import Journey
from pointsman_contracts.reply import Rejection
from pointsman_core.refusal import Refusal
from pointsman_runtime.stage import Hop


def reject(hop: Hop[Journey], refusal: Refusal) -> Rejection:
    """`refusal` as the edge reads it."""
    return hop.reject(
        refusal.status,
        refusal.message,
        type=refusal.type,
        code=refusal.code,
        param=refusal.param,
        retry_after_s=refusal.retry_after_s,
        dropped_reason=refusal.dropped_reason,
    )
