"""`rules`: the first condition that holds decides."""

from typing import NamedTuple, Self, cast

from cel_expr_python import cel
from pydantic import Field, model_validator

from pointsman_contracts.journey import Journey
from pointsman_core.config import Config
from pointsman_core.plugins import PluginError
from pointsman_plugins.picking import Choice, PickError, PoolStates, ProfilePicker, need_profile
from pointsman_plugins.plugin import Params
from pointsman_profile_picker.domain.equality import Equality
from pointsman_profile_picker.domain.expression import (
    EvaluationError,
    ExpressionError,
    RuleEnvironment,
    holds,
)
from pointsman_profile_picker.domain.split import Share, Split


class Rule(Params):
    """A condition in CEL, and the profile of the requests that meet it, or shares of several profiles."""

    when: str
    profile: str | None = None
    share: Share | None = None
    name: str | None = None
    """For notes and errors; default: the rule's position."""

    @model_validator(mode="after")
    def _has_one_result(self) -> Self:
        if (self.profile is None) == (self.share is None):
            raise ValueError("a rule needs either `profile` or `share`")
        return self


class RulesParams(Params):
    """Rules in order."""

    rules: tuple[Rule, ...] = Field(min_length=1)


class _Compiled(NamedTuple):
    label: str
    condition: cel.Expression
    equality: Equality | None
    """The same condition, where it is as simple."""
    choice: Choice | None
    """Where it is the same for all requests."""
    split: Split | None


class Rules(ProfilePicker[RulesParams]):
    """CEL over headers, path, body fields, attributes, identity and the state of pools."""

    type_name = "rules"

    def setup(self) -> None:
        self._expressions = RuleEnvironment(())
        self._compiled: list[_Compiled] = []

    def bind(self, config: Config) -> None:
        self._expressions = RuleEnvironment(config.pools)
        self._compiled = [self._compile(position, rule, config) for position, rule in enumerate(self.params.rules)]
        self.reads_pools = self._expressions.reads_pools

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        expressions = self._expressions
        request: cel.Activation | None = None
        for label, condition, equality, choice, split in self._compiled:
            if equality is not None:
                met = equality.read(journey) == equality.text
            else:
                if request is None:
                    request = expressions.make_activation(journey, lambda: pools.table(expressions.pools, now_s))
                try:
                    met = holds(condition, request)
                except EvaluationError as error:
                    raise PickError(label, str(error)) from error
            if met:
                return choice or Choice(cast("Split", split).profile_for(journey), label)
        return None

    def _compile(self, position: int, rule: Rule, config: Config) -> _Compiled:
        label = rule.name or f"rule {position + 1}"
        path = ("rules", position)
        try:
            condition = self._expressions.compile_condition(rule.when)
        except ExpressionError as error:
            raise PluginError(f"{label} ({rule.when!r}): {error}", (*path, "when")) from error
        choice, split = None, None
        if rule.share is not None:
            for profile in rule.share.split:
                need_profile(profile, config, *path, "share", "split")
            split = Split(rule.share, f"{self.name}/{label}")
        elif rule.profile is not None:
            need_profile(rule.profile, config, *path, "profile")
            choice = Choice(rule.profile, label)
        return _Compiled(label, condition, Equality.from_condition(rule.when), choice, split)
