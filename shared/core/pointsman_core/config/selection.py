"""The sections that choose: one profile for a request, one model for a request."""

from decimal import Decimal
from typing import Final, Literal

from pydantic import Field, model_validator

from pointsman_core.config.cascading import Cascade
from pointsman_core.config.section import PluginUse, ScorerUse, Section, expanded
from pointsman_core.config.served_model import Dollars


class PickerUse(PluginUse):
    """The profile-picker: one plugin, and what happens when it can't decide."""

    use: str = "single"
    """Type of the plugin."""
    default: str | None = None
    """Profile for requests for which the picker finds none."""
    on_undecided: Literal["default", "error"] | None = None
    """Default: `default` when a default profile is named, otherwise `error`."""


class ChoiceWeights(Section):
    """Weights of what a model is chosen by, beside the ranking's scorers."""

    time: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the time to the last token, and of the delay that the request causes to others: shortest ÷ time."""
    money: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the expected cost, with what is cached: lowest ÷ cost."""
    quality: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the model's configured quality."""


class ChoiceWorth(Section):
    """Prices of what isn't money, so that models compare in dollars: the highest net worth wins."""

    second: Dollars = Decimal(0)
    """Dollars that a second is worth, of the time to the last token and of the delay that the request causes to
    others."""
    first_token_second: Dollars = Decimal(0)
    """Dollars that a second to the first token is worth beyond that, of this request and of others."""
    quality: Dollars = Decimal(0)
    """Dollars that an answer of quality 1 is worth more than one of quality 0."""


class ChoiceLimits(Section):
    """Limits of a choice. A model within all of them comes before any other."""

    first_token_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Longest time to the first token, in seconds."""
    answer_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Longest time to the last token, in seconds."""
    dollars: Dollars | None = None
    """Highest expected cost of the request."""
    quality: float | None = Field(default=None, ge=0, le=1)
    """Least quality of the model."""


_ALONE: Final = 1.0
_TIE: Final = 1e-6
"""Weight that decides only between equals."""


class JointChoice(Section):
    """The scheduler chooses the model together with the engine: by the time that each model's best engine would take
    now, by cost and quality. A model whose time is unknown comes after those within all limits, unless its pool has an
    idle engine."""

    prefer: Literal["cheapest", "fastest", "best"] | None = None
    """Short for one weight: of money, time or quality. The others decide between equals."""
    weights: ChoiceWeights = ChoiceWeights()
    """Weights of time, money and quality."""
    worth: ChoiceWorth | None = None
    """Instead of weights: dollars that a second and quality are worth. A dearer model is chosen when, and only when, it
    gains more than it costs. The ranking's scorers don't count."""
    within: ChoiceLimits = ChoiceLimits()
    """Limits that a model should meet."""
    otherwise: Literal["nearest", "reject"] = "nearest"
    """When every model is beyond a limit: `nearest` takes the one that exceeds its limit by the smallest factor,
    `reject` answers 429."""

    @model_validator(mode="after")
    def _says_what_to_choose_by(self) -> "JointChoice":
        given = (self.prefer is not None, bool(self.weights.model_fields_set), self.worth is not None)
        if sum(given) != 1:
            raise ValueError("write one of `prefer`, `weights` and `worth`")
        return self

    @property
    def effective(self) -> ChoiceWeights:
        """The weights, of `prefer` too."""
        if self.prefer is None:
            return self.weights
        return ChoiceWeights(
            money=_ALONE if self.prefer == "cheapest" else _TIE,
            time=_ALONE if self.prefer == "fastest" else _TIE,
            quality=_ALONE if self.prefer == "best" else _TIE,
        )


class Ranking(Section):
    """How a selector ranks models: filters, then weighted scorers, then one picker."""

    filters: tuple[PluginUse, ...] = ()
    """Remove models that can't serve the request."""
    scorers: tuple[ScorerUse, ...] = ()
    """Score the models that are left from 0 to 1; scores are added up by weight."""
    picker: PluginUse = PluginUse(use="max-score")
    """Picks one model by the total scores."""
    joint: JointChoice | None = None
    """Leaves the choice among the models that passed the filters to the scheduler, which makes it together with the
    choice of the engine."""


class Selector(Section):
    """A named policy of the model-selector. `filters`, `scorers`, `picker` and `joint` at this level are a short form
    for one ranking named `default`."""

    models: tuple[str, ...] = ()
    """Models to choose among; empty means all that are configured."""
    rankings: dict[str, Ranking] = Field(default_factory=lambda: {"default": Ranking()})
    """Ways to rank models, by name; `choose` chooses one of them."""
    choose: PluginUse = PluginUse(use="single")
    """Which ranking a request gets. It can only change how models are ranked, never the request's profile."""
    fallbacks: int = Field(default=0, ge=0, le=8)
    """Next best models that the edge may try when the chosen one fails before its first byte."""
    cascade: Cascade | None = None
    """Asks a cheap model first, and a larger one where its answer isn't confident."""

    @model_validator(mode="before")
    @classmethod
    def _expand_the_short_form(cls, value: object) -> object:
        return expanded(value, "rankings")

    @model_validator(mode="after")
    def _rankings_have_a_chooser(self) -> "Selector":
        if not self.rankings:
            raise ValueError("rankings: at least one ranking is needed")
        if self.choose.use == "single" and not self.choose.model_extra and len(self.rankings) > 1:
            raise ValueError(
                f"choose: there are {len(self.rankings)} rankings ({', '.join(self.rankings)}); "
                "several rankings need a chooser, e.g. `use: by-header`"
            )
        if self.cascade is not None and any(each.scorers or each.joint for each in self.rankings.values()):
            raise ValueError("cascade: its models are asked in the order of `models`; leave out `scorers` and `joint`")
        if self.cascade is not None and self.fallbacks:
            raise ValueError("cascade: each model is the fallback of those before it; leave out `fallbacks`")
        return self
