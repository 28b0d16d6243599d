"""The place of a request in its selector's cascade."""

from collections.abc import Collection, Sequence

from pointsman_contracts.cascade import ConfidenceRule
from pointsman_contracts.journey import CascadeStep, Stage
from pointsman_contracts.message import read_fields
from pointsman_core.config import Cascade, Config, response_entry
from pointsman_plugins.selecting import Candidate


class CompiledCascade:
    """A selector's cascade. Its candidates are in the order in which they are asked."""

    def __init__(self, cascade: Cascade, config: Config) -> None:
        self._rule = ConfidenceRule(
            mean_logprob=cascade.mean_logprob,
            low_logprob=cascade.low_logprob,
            refusal=cascade.refusal,
            phrases=cascade.phrases,
            length=cascade.length,
            form=cascade.form,
            unknown=cascade.unknown,
        )
        self._check: Stage | None = None
        if cascade.check is not None:
            use = cascade.check.model_copy(update={"mode": "buffer", "on_error": "deny"})
            self._check = read_fields(Stage, response_entry(use, config.stages))
        self._hold_tokens = cascade.hold_tokens
        self._within_ms = None if cascade.within is None else round(cascade.within * 1000.0)

    def left_after(self, escalated: Collection[str], candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates that come after those that were asked already."""
        last = max((place for place, each in enumerate(candidates) if each.name in escalated), default=-1)
        return list(candidates[last + 1 :])

    def step_of(self, candidates: Sequence[Candidate]) -> CascadeStep | None:
        """The step of the first of these candidates; None where it is the last one, whose answer isn't judged."""
        first, *rest = candidates
        if not rest:
            return None
        return CascadeStep(
            model=first.name,
            rest=tuple([each.name for each in rest]),
            confident=self._rule,
            check=self._check,
            hold_tokens=self._hold_tokens,
            within_ms=self._within_ms,
        )
