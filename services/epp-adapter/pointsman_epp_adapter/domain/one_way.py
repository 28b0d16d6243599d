"""Stages that a profile wants on the way back, where this edge runs none."""

from pointsman_contracts.journey import Stage
from pointsman_contracts.reply import Decision
from pointsman_edge.domain.static_choice import Closed


def without_response_stages(decision: Decision) -> Decision:
    """The decision without them, `degraded`. Raises Closed when one of them may not be missing."""
    if not decision.response:
        return decision
    for stage in decision.response:
        if stage.on_error != "allow":
            raise _insisted_on(stage)
    reasons = tuple(f"no {stage.service} on the way back" for stage in decision.response)
    return decision.model_copy(update={"level": "degraded", "reasons": (*decision.reasons, *reasons)})


def _insisted_on(stage: Stage) -> Closed:
    message = f"The profile insists on {stage.service} for answers, which isn't available."
    return Closed(message, "stage_unavailable")
