"""`ranked`: filter, score and pick over profiles (S0-30)."""

import zlib
from collections.abc import Mapping
from random import Random
from typing import Literal, NamedTuple

from cel_expr_python import cel
from pydantic import Field

from pointsman_contracts.journey import Journey
from pointsman_core.config import Config
from pointsman_core.plugins import PluginError
from pointsman_plugins.picking import Choice, PickError, PoolStates, ProfilePicker, need_profile
from pointsman_plugins.plugin import Params
from pointsman_profile_picker.domain.expression import EvaluationError, ExpressionError, RuleEnvironment, holds, measure


class Option(Params):
    """A profile that may be chosen."""

    profile: str
    when: str = "true"
    """Condition in CEL; without it the profile is out for a request."""
    score: str = "1.0"
    """Number in CEL, clamped to [0,1]; 1 is best."""


class RankedParams(Params):
    """Profiles to choose among."""

    options: tuple[Option, ...] = Field(min_length=1)
    pick: Literal["max-score", "weighted-random"] = "max-score"
    """`max-score`: the highest; the first of equals. `weighted-random`: by chance in proportion to the scores."""


class _Compiled(NamedTuple):
    profile: str
    condition: cel.Expression
    score: cel.Expression


class Ranked(ProfilePicker[RankedParams]):
    """Removes profiles whose condition doesn't hold and picks one of the others by its score."""

    type_name = "ranked"

    def setup(self) -> None:
        self._expressions = RuleEnvironment(())
        self._options: list[_Compiled] = []

    def bind(self, config: Config) -> None:
        self._expressions = RuleEnvironment(config.pools)
        self._options = [self._compile(position, config) for position in range(len(self.params.options))]
        self.reads_pools = self._expressions.reads_pools

    def pick(self, journey: Journey, pools: PoolStates, now_s: float) -> Choice | None:
        expressions = self._expressions
        request = expressions.make_activation(journey, lambda: pools.table(expressions.pools, now_s))
        scores: dict[str, float] = {}
        for option in self._options:
            try:
                if holds(option.condition, request):
                    scores[option.profile] = max(measure(option.score, request), scores.get(option.profile, 0.0))
            except EvaluationError as error:
                raise PickError(f"option {option.profile}", str(error)) from error
        if not scores:
            return None
        profile = self._choice(scores, journey.request_id)
        return Choice(profile, f"{scores[profile]:.2f} of {len(scores)}")

    def _choice(self, scores: Mapping[str, float], request_id: str) -> str:
        profiles = list(scores)
        if self.params.pick == "max-score" or not any(scores.values()):
            return max(profiles, key=lambda profile: scores[profile])
        # Seeded by the request, so that one that is sent again is decided alike by every replica.
        random = Random(zlib.crc32(request_id.encode("utf-8", "surrogatepass")))
        return random.choices(profiles, list(scores.values()))[0]

    def _compile(self, position: int, config: Config) -> _Compiled:
        option = self.params.options[position]
        need_profile(option.profile, config, "options", position, "profile")
        where, text = "when", option.when
        try:
            condition = self._expressions.compile_condition(text)
            where, text = "score", option.score
            return _Compiled(option.profile, condition, self._expressions.compile_score(text))
        except ExpressionError as error:
            raise PluginError(f"option {option.profile} ({text!r}): {error}", ("options", position, where)) from error
