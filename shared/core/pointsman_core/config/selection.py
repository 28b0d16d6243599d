"""The sections that choose: one profile for a request, one model for a request."""

from typing import Literal

from pydantic import Field, model_validator

from pointsman_core.config.section import PluginUse, ScorerUse, Section, expanded


class PickerUse(PluginUse):
    """The profile-picker: one plugin, and what happens when it can't decide."""

    use: str = "single"
    """Type of the plugin."""
    default: str | None = None
    """Profile for requests for which the picker finds none."""
    on_undecided: Literal["default", "error"] | None = None
    """Default: `default` when a default profile is named, otherwise `error`."""


class Ranking(Section):
    """How a selector ranks models: filters, then weighted scorers, then one picker."""

    filters: tuple[PluginUse, ...] = ()
    """Remove models that can't serve the request."""
    scorers: tuple[ScorerUse, ...] = ()
    """Score the models that are left from 0 to 1; scores are added up by weight."""
    picker: PluginUse = PluginUse(use="max-score")
    """Picks one model by the total scores."""


class Selector(Section):
    """A named policy of the model-selector. `filters`, `scorers` and `picker` at this level are a short form for one
    ranking named `default`."""

    models: tuple[str, ...] = ()
    """Models to choose among; empty means all that are configured."""
    rankings: dict[str, Ranking] = Field(default_factory=lambda: {"default": Ranking()})
    """Ways to rank models, by name; `choose` chooses one of them."""
    choose: PluginUse = PluginUse(use="single")
    """Which ranking a request gets. It can only change how models are ranked, never the request's profile."""
    fallbacks: int = Field(default=0, ge=0, le=8)
    """Next best models that the edge may try when the chosen one fails before its first byte."""

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
        return self
