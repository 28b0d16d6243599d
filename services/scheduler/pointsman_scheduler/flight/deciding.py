"""Records decisions: the largest part of what a log costs a request.

All that is recorded of a decision is taken from it where it was made, in one function. Between two requests other code
takes the processor's cache: a call costs as much as what it would do here, and reading the request or the outcome again
later costs more.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from pointsman_flight.hashes import HASH_BYTES
from pointsman_flight.records import BriefDecision
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_scheduler.domain.outcome import Outcome, Postponed, Scheduled
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.flight.backlog import AT_ONCE, MANY_BYTES, Fields
from pointsman_scheduler.flight.outcomes import DIGEST, SCORES, scores_digest
from pointsman_scheduler.flight.writing import RecordMaker

DECISION: Final = BriefDecision.__struct_config__.tag
"""The fields below are of this record."""

Decide: TypeAlias = Callable[[ScheduleRequest, float, int, Policy], Outcome]


def deciding(inner: Decide, maker: RecordMaker) -> Decide:
    """`PoolScheduler.decide` with a record of each call and its outcome."""
    record, numbers, backlog, hashed = maker.decided, maker.numbers, maker.backlog, maker.hashed
    inputs, hashes = backlog.inputs, backlog.hashes

    def decide(request: ScheduleRequest, now: float, seed: int, policy: Policy) -> Outcome:
        bound = request.bound  # set later where the request waits
        try:
            outcome = inner(request, now, seed, policy)
        except Exception as error:
            record(request, now, seed, policy, bound, error)
            raise
        number = numbers.get(policy)
        try:
            if number is None or hashed:
                record(request, now, seed, policy, bound, outcome)
                return outcome
            if isinstance(outcome, Scheduled) and not outcome.selection.legs:
                runs = outcome.runs
                scores = runs[0].scores
                made: Fields = (
                    DECISION, now, seed, number, request.edge, request.request_id, bound, request.queued_s,
                    "scheduled", outcome.endpoints, outcome.held, outcome.selection.rank, outcome.cached_tokens,
                    outcome.reasons, DIGEST(outcome.sight.figures, 0),
                    DIGEST(SCORES(scores), 0) if isinstance(scores, list) and len(runs) == 1 else scores_digest(runs),
                )  # fmt: skip
            elif isinstance(outcome, Postponed):
                made = (
                    DECISION, now, seed, number, request.edge, request.request_id, bound, request.queued_s,
                    "postponed", (outcome.worker,), False, None, 0, (), 0, 0,
                )  # fmt: skip
            else:
                record(request, now, seed, policy, bound, outcome)
                return outcome
            if bound is None:
                facts, blocks = request.facts, request.blocks.tobytes()
                made += (
                    request.model, request.lora, facts.prompt_tokens, facts.tokens_exact,
                    facts.max_output_tokens, facts.stream, len(blocks) // HASH_BYTES, facts.block_tokens,
                    facts.blocks_precise, facts.session, facts.priority, facts.fairness_id, facts.body_bytes,
                    facts.slo_ttft_ms, facts.slo_itl_ms, facts.subset, facts.workers, facts.features,
                    request.attempt, None if maker.plain else maker.special(request),
                )  # fmt: skip
                hashes.extend(blocks)
        except Exception as error:  # noqa: BLE001 - no request may fail for it
            backlog.refuse(error)
            return outcome
        inputs.append(made)
        if len(inputs) >= AT_ONCE or len(hashes) >= MANY_BYTES:
            backlog.encode()
        return outcome

    return decide
