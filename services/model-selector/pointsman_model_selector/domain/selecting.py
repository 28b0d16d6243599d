"""The extension points: filter, score and pick over models, and the choice of a ranking."""

from abc import abstractmethod
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from pointsman_contracts.journey import Journey
from pointsman_model_selector.domain.candidate import Candidate, Standing
from pointsman_plugins.plugin import ParamsT_co, Plugin


class Question(NamedTuple):
    """One request that needs a model."""

    journey: Journey
    standing: Standing
    now_s: float
    """Monotonic; ages pool states."""
    now_ms: int
    """Unix time."""


class StatePlugin(Plugin[ParamsT_co]):
    """What filters and scorers have in common."""

    reads_pools: bool = False
    """Whether results depend on the state of pools, so that old state is told."""


class ModelFilter(StatePlugin[ParamsT_co]):
    """Takes candidates out."""

    group = "pointsman.model_selector.filters"
    stability = "beta"

    @abstractmethod
    def objection(self, question: Question, candidate: Candidate) -> str | None:
        """Why this model can't serve the request, in a few words; None when it can."""

    def retry_after_s(self, question: Question, candidate: Candidate) -> float | None:
        """When the objection may be gone; None when waiting doesn't help."""
        del question, candidate
        return None


class ModelScorer(StatePlugin[ParamsT_co]):
    """Says how much it likes each candidate."""

    group = "pointsman.model_selector.scorers"
    stability = "beta"

    def bind(self, candidates: Sequence[Candidate]) -> None:
        """Look at the models of the selector. Raises PluginError; called once, before `scores`."""
        del candidates

    @abstractmethod
    def scores(self, question: Question, candidates: Sequence[Candidate]) -> list[float]:
        """One number in [0,1] for each candidate; others are clamped."""

    def remark(self, question: Question) -> str | None:
        """What the decision says about how it was scored, in a few words without prompt text."""
        del question
        return None


class ModelPicker(Plugin[ParamsT_co]):
    """Decides on the weighted sums of the scores."""

    group = "pointsman.model_selector.pickers"
    stability = "beta"

    @abstractmethod
    def order(self, totals: Sequence[float], random: Random) -> list[int]:
        """Positions in order of preference: the choice, then the fallbacks. `totals` has at least one entry."""


class RankingChooser(Plugin[ParamsT_co]):
    """Chooses by which ranking a selector ranks a request's models (S0-48)."""

    group = "pointsman.model_selector.choosers"
    stability = "beta"

    def named(self) -> Sequence[str]:
        """Rankings that the parameters name, to be checked against those of the selector."""
        return ()

    @abstractmethod
    def ranking(self, journey: Journey) -> str | None:
        """The name of a ranking; None for the selector's first."""
