"""Decisions with response stages for answers that Envoy doesn't show."""

from collections.abc import Sequence

from msgspec.structs import replace

from pointsman_contracts.journey import AFTER, Stage
from pointsman_contracts.reply import STAGE_UNAVAILABLE, Decision
from pointsman_edge.deciding.static_choice import Closed


def without_response_stages(decision: Decision, postprocessing: Sequence[Stage]) -> Decision:
    """The decision without them, `degraded`. Raises Closed when the client would have to wait for one of them and it
    may not be missing."""
    stages = (*decision.response, *postprocessing)
    if not stages:
        return decision
    for stage in stages:
        if stage.on_error == "deny" and (stage.answer is None or stage.answer.mode != AFTER):
            raise _insisted_on(stage)
    reasons = tuple(f"no {stage.service} reviews the response" for stage in stages)
    return replace(decision, level="degraded", reasons=(*decision.reasons, *reasons))


def without_cascade(decision: Decision) -> Decision:
    """The decision without its cascade, `degraded`: Envoy sends the request, and can't send it again once it has an
    answer. The larger models stay as those to try when the first one fails."""
    reasons = (*decision.reasons, "the first model's answer isn't judged behind Envoy")
    return replace(decision, cascade=None, level="degraded", reasons=reasons)


def _insisted_on(stage: Stage) -> Closed:
    message = f"The profile requires that {stage.service} reviews the response, but no replica of it is available."
    return Closed(message, STAGE_UNAVAILABLE)
