"""The extension points: filter, score and pick over models, and the choice of a ranking."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from pointsman_contracts.journey import Journey, Target
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolSnapshot
from pointsman_core.config import Embeddings
from pointsman_core.pool_table import PoolTable
from pointsman_plugins.plugin import ParamsT_co, Plugin

if TYPE_CHECKING:
    # A selector that compares no vectors doesn't load numpy.
    import numpy as np
    from numpy.typing import NDArray


class Candidate(NamedTuple):
    """One model, as configured (S0-52)."""

    name: str
    """The name that requests and the configuration use."""
    target: Target
    block_tokens: int | None
    """Tokens in a prefix block of the pool; None at a provider."""
    input_cost: float
    """Dollars per million prompt tokens."""
    output_cost: float
    """Dollars per million output tokens."""
    quality: float
    """In [0,1]."""
    context: int | None
    """Longest sequence in tokens."""
    features: frozenset[str]
    apis: frozenset[str]
    groups: frozenset[str]
    strengths: str
    """Its strengths, in words; empty when none are configured."""
    examples: tuple[str, ...] = ()
    """Prompts that it is good at."""


class PoolView(NamedTuple):
    """A pool at its newest snapshot."""

    models: frozenset[str]
    """Models and adapters that a serving worker serves."""
    saturation: float
    received_s: float
    """Receipt by this process's monotonic clock, in seconds."""


_MOST_OPEN: Final = 65536
"""Requests that count as under way at most; the oldest is forgotten first."""


class RequestsUnderWay:
    """The requests under way that this process has chosen a model for, by edge and request id."""

    def __init__(self) -> None:
        self._models: Final[dict[tuple[str, str], str]] = {}
        self._counts: Final[dict[str, int]] = {}

    def __len__(self) -> int:
        return len(self._models)

    def of(self, model: str) -> int:
        """How many requests a model has."""
        return self._counts.get(model, 0)

    def begin(self, request: tuple[str, str], model: str) -> None:
        """A model was chosen; a request that is sent again counts once."""
        self.end(request)
        if len(self._models) >= _MOST_OPEN:
            self.end(next(iter(self._models)))
        self._models[request] = model
        self._counts[model] = self._counts.get(model, 0) + 1

    def end(self, request: tuple[str, str]) -> None:
        """The request is over; one that isn't known changes nothing."""
        model = self._models.pop(request, None)
        if model is None:
            return
        left = self._counts[model] - 1
        if left:
            self._counts[model] = left
        else:
            del self._counts[model]


class ModelStates:
    """The state of pools and models, from the newest signals. Latest wins."""

    def __init__(self) -> None:
        table = PoolTable[PoolSnapshot, PoolView](_view)
        self.pool_changed: Final = table.take_snapshot
        """Take a pool's snapshot over, at a monotonic time, unless a newer one is here."""
        self._models: Final[dict[str, ModelStatistics]] = {}
        self.pool: Final[Callable[[str], PoolView | None]] = table.views.get
        """The newest state of a pool; None before its first snapshot."""
        self.statistics: Final[Callable[[str], ModelStatistics | None]] = self._models.get
        """Statistics of a model's completions; None before the first ones."""
        self.open: Final = RequestsUnderWay()

    def model_changed(self, statistics: ModelStatistics) -> None:
        """Take statistics over unless newer ones are here."""
        known = self._models.get(statistics.model)
        if known is None or known.at_ms <= statistics.at_ms:
            self._models[statistics.model] = statistics


def _view(snapshot: PoolSnapshot, now_s: float) -> PoolView:
    return PoolView(frozenset(snapshot.models), snapshot.saturation, now_s)


class PromptEmbedding(NamedTuple):
    """The vector of a prompt, or the reason why there is none."""

    by: str
    """The embedder's name; vectors of different names can't be compared."""
    vector: "NDArray[np.float32] | None"
    """A vector of length 1."""
    missing: str = ""
    """Why there is no vector, in a few words; empty for a request without text."""


class ModelQuestion(NamedTuple):
    """One request that needs a model."""

    journey: Journey
    standing: ModelStates
    now_s: float
    """Monotonic; ages pool states."""
    now_ms: int
    """Unix time."""
    embedding: PromptEmbedding | None = None
    """Only where a scorer of the selector has `embeddings`."""


class StatePlugin(Plugin[ParamsT_co]):
    """Shared by filters and scorers."""

    reads_pools: bool = False
    """Whether results depend on the state of pools, so that stale state is reported."""
    reads_open_requests: bool = False
    """Whether results depend on the requests under way, which are counted only then."""


class ModelFilter(StatePlugin[ParamsT_co]):
    """Takes candidates out."""

    group = "pointsman.model_selector.filters"
    stability = "beta"

    sees_all: bool = False
    """Whether its verdict on a model depends on the other models: `objections` is then asked."""

    @abstractmethod
    def objection(self, question: ModelQuestion, candidate: Candidate) -> str | None:
        """Why this model can't serve the request, in a few words; None when it can."""

    def objections(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[str | None]:
        """The objection to each of the models that are left."""
        return [self.objection(question, candidate) for candidate in candidates]

    def retry_after_s(self, question: ModelQuestion, candidate: Candidate) -> float | None:
        """When the objection may be gone; None when waiting doesn't help."""
        del question, candidate
        return None


class ModelScorer(StatePlugin[ParamsT_co]):
    """Scores each candidate."""

    group = "pointsman.model_selector.scorers"
    stability = "beta"

    def bind(self, candidates: Sequence[Candidate]) -> None:
        """Look at the models of the selector. Raises PluginError; called once, before `scores`."""
        del candidates

    @property
    def embeddings(self) -> Embeddings | None:
        """The embedding model that it compares prompts by; None when it compares no vectors."""
        return None

    def texts_to_embed(self) -> Sequence[str]:
        """Texts that the embedding model embeds once, for `take_vectors`."""
        return ()

    def take_vectors(self, by: str, vectors: "NDArray[np.float32]") -> None:
        """Take over the vectors of `texts_to_embed`, a row of length 1 for each. `by`: the embedder's name. Called at
        any time after `bind`; until then prompts can't be compared by meaning."""
        del by, vectors

    @abstractmethod
    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        """One number in [0,1] for each candidate; others are clamped."""

    def remark(self, question: ModelQuestion) -> str | None:
        """A remark on the scoring for the decision, in a few words without prompt text."""
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
