"""The choice of a model as the scheduler gets it: prices, qualities and measured times of the models that are left."""

from collections.abc import Mapping, Sequence

from pointsman_contracts.model_choice import ModelChoice, ModelOption
from pointsman_contracts.money import nanos
from pointsman_core.config import JointChoice
from pointsman_core.prices import FREE, Price
from pointsman_model_selector.domain.expected_answer import expected_output
from pointsman_plugins.selecting import Candidate, ModelQuestion


def open_choice(
    joint: JointChoice,
    question: ModelQuestion,
    candidates: Sequence[Candidate],
    scores: Sequence[float],
    prices: Mapping[str, Price],
    fallbacks: int,
) -> ModelChoice:
    """The candidates in the selector's order, `scores` likewise, with the weights and limits."""
    options: list[ModelOption] = []
    outputs = expected_output(question, candidates)
    for candidate, score, output in zip(candidates, scores, outputs, strict=True):
        price = prices.get(candidate.name, FREE)
        statistics = question.standing.statistics(candidate.name)
        options.append(
            ModelOption(
                name=candidate.name,
                target=candidate.target,
                block_tokens=candidate.block_tokens,
                input_price=price.input,
                cached_price=price.cached,
                output_price=price.output,
                output_tokens=output,
                quality=candidate.quality,
                score=score,
                first_token_ms=None if statistics is None else statistics.ttft_ms,
                token_ms=None if statistics is None else statistics.itl_ms,
            )
        )
    weights, within = joint.effective, joint.within
    return ModelChoice(
        options=tuple(options),
        time=weights.time,
        money=weights.money,
        quality=weights.quality,
        second_worth=None if joint.worth is None else nanos(joint.worth.second),
        first_token_worth=0 if joint.worth is None else nanos(joint.worth.first_token_second),
        quality_worth=0 if joint.worth is None else nanos(joint.worth.quality),
        most_first_token_ms=_milliseconds(within.first_token_s),
        most_answer_ms=_milliseconds(within.answer_s),
        most_cost=None if within.dollars is None else nanos(within.dollars),
        least_quality=within.quality,
        strict=joint.otherwise == "reject",
        fallbacks=fallbacks,
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000.0
