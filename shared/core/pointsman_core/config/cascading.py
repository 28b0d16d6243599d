"""The section of a selector that asks a cheap model first."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from pointsman_core.config.section import Problem, Section
from pointsman_core.config.stages import CustomStage, StageUse, as_stage, response_problem
from pointsman_core.units import PositiveDuration

LogProb = Annotated[float, Field(le=0, allow_inf_nan=False)]
"""A log probability: natural logarithm, 0 is certain."""


class Cascade(Section):
    """Asks the selector's models one after the other, in the order of `models`, until an answer is confident. The last
    one's answer isn't judged. An answer is held until it is judged."""

    mean_logprob: LogProb | None = None
    """Least mean of the log probabilities of the answer's tokens. It depends on the model and on the prompts: read it
    from recorded answers."""
    low_logprob: LogProb | None = None
    """Least log probability of the tokens' lowest tenth, which a long answer doesn't hide as it does a mean."""
    refusal: bool = True
    """An answer that the model or its provider marks as refused isn't confident."""
    phrases: tuple[str, ...] = ()
    """An answer that begins with one of these words isn't confident, e.g. `I'm sorry, but I can't`."""
    length: Literal["always", "unlimited", "never"] = "unlimited"
    """Whether an answer that ended at a limit of tokens isn't confident. `unlimited`: where the client set no limit."""
    form: bool = True
    """Whether JSON that the request asked for, and arguments of tools, must be JSON."""
    unknown: Literal["escalate", "accept"] = "escalate"
    """The effect of a rule that can't be checked: the model gave no log probabilities, or the checking stage failed."""
    check: Annotated[StageUse, BeforeValidator(as_stage)] | None = None
    """A stage that reviews the whole answer: one that it blocks isn't confident."""
    hold_tokens: int | None = Field(default=None, ge=1)
    """A streamed answer is judged, and leaves, once it has about this many tokens. Default: once it is whole."""
    within: PositiveDuration | None = None
    """How long an answer may take until the next model is asked. Default: half of the request's time left."""


def cascade_problems(
    where: str, cascade: Cascade, models: Iterable[str], stages: Mapping[str, CustomStage], known: Iterable[str]
) -> list[Problem]:
    """The problems of a cascade of these models. `known`: names of all stages."""
    problems: list[Problem] = []
    if len(set(models)) < 2:
        problems.append((where, "a cascade needs at least two `models`, in the order in which they are asked"))
    check = cascade.check
    if check is None:
        return problems
    if check.service not in known:
        return [*problems, (f"{where}.check", f"{check.service!r} is no stage")]
    if check.mode is not None or check.on_error is not None:
        problems.append(
            (
                f"{where}.check",
                "a cascade's check sees whole answers: `mode` and `on_error` have no effect; see `unknown`",
            )
        )
    elif (problem := response_problem(check, stages)) is not None:
        problems.append((f"{where}.check", problem))
    if cascade.hold_tokens is not None:
        problems.append((f"{where}.hold_tokens", "a stage checks whole answers: leave out `hold_tokens` or `check`"))
    return problems
