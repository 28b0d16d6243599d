"""`semantic-match`: models that suit what the prompt is about."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from pointsman_core.config import Embeddings
from pointsman_core.lexical import LEXICAL, PROMPT_VECTOR, Vector, decode, rarity, similarity, vector
from pointsman_core.plugins import PluginError, unknown
from pointsman_model_selector.domain.classes import known_classes
from pointsman_plugins.plugin import Params
from pointsman_plugins.selecting import Candidate, ModelQuestion, ModelScorer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pointsman_model_selector.domain.nearest import Nearest, Words


class PromptClass(Params):
    """Prompts of one kind."""

    models: tuple[str, ...] = Field(min_length=1)
    """The models that are good at them."""
    examples: tuple[str, ...] = ()
    """Example prompts. `code`, `math`, `chat` and `translation` have their own, to which these are added."""


class SemanticMatchParams(Params):
    """How prompts and models are compared."""

    embeddings: Embeddings | None = None
    """Compares meanings by this model, as in `caches`. Default: words are compared."""
    classes: dict[str, PromptClass] = Field(default_factory=dict[str, PromptClass])
    """Classes of prompts. The class of a prompt is that of the closest examples. Default: each model's `strengths` and
    `examples` are compared with the prompt."""
    least: float = Field(default=0.05, ge=0, le=1)
    """Least similarity; below it nothing counts as related."""
    margin: float = Field(default=0.1, gt=0, le=1)
    """A class, or with `embeddings` a model, whose similarity is less than the best one's by this much scores 0."""


class _Compared(NamedTuple):
    """The comparison of one prompt."""

    shares: Sequence[float]
    """The share of each label."""
    remark: str


class SemanticMatch(ModelScorer[SemanticMatchParams]):
    """1 for the model that suits the prompt best, by its `strengths` and `examples` or by the prompt's class, less for
    the others, and 0 for all when nothing is close. Without `embeddings`, or while they are unavailable, it compares
    words, and the decision says so: `semantic-match: lexical`."""

    type_name = "semantic-match"
    consumes = (PROMPT_VECTOR,)

    def setup(self) -> None:
        self._strengths: dict[str, Vector] = {}
        self._weights: list[float] = []
        self._labels: dict[str, tuple[int, ...]] = {}
        """Model → the positions of its labels: its classes, or itself."""
        self._names: list[str] = []
        self._texts: list[str] = []
        self._marks: list[int] = []
        self._by = ""
        self._nearest: Nearest | None = None
        self._words: Words | None = None
        self._nearest_words: Nearest | None = None
        self._remark: tuple[Any, str] = (None, "")

    @property
    def embeddings(self) -> Embeddings | None:
        """As configured."""
        return self.params.embeddings

    def texts_to_embed(self) -> Sequence[str]:
        """The examples of all labels."""
        return self._texts

    def bind(self, candidates: Sequence[Candidate]) -> None:
        described = {each.name: _described(each) for each in candidates}
        if self.params.classes:
            self._bind_labels(self._classes(described), {name: each.models for name, each in self._uses.items()})
            return
        if candidates and not any(described.values()):
            names = ", ".join(candidate.name for candidate in candidates)
            raise PluginError(f"{self.name!r} needs `strengths` of a model; none of {names} has them")
        self._strengths = {name: vector(" ".join(texts)) for name, texts in described.items()}
        self._weights = rarity(self._strengths.values())
        if self.params.embeddings is not None:
            labels = {name: texts for name, texts in described.items() if texts}
            self._bind_labels(labels, {name: (name,) for name in labels})

    @property
    def _uses(self) -> Mapping[str, PromptClass]:
        return self.params.classes

    def _classes(self, models: Mapping[str, object]) -> Mapping[str, Sequence[str]]:
        classes: dict[str, Sequence[str]] = {}
        for name, use in self._uses.items():
            for model in use.models:
                if model not in models:
                    raise PluginError(unknown("model", model, models), ("classes", name, "models"))
            classes[name] = (*known_classes().get(name, ()), *use.examples)
            if not classes[name]:
                known = ", ".join(known_classes())
                raise PluginError(f"{name!r} needs `examples`; classes with their own: {known}", ("classes", name))
        return classes

    def _bind_labels(self, labels: Mapping[str, Sequence[str]], models: Mapping[str, Sequence[str]]) -> None:
        from pointsman_model_selector.domain.nearest import Nearest, Words, grouped

        self._names = list(labels)
        self._texts, self._marks = grouped(labels)
        for position, label in enumerate(labels):
            for model in models[label]:
                self._labels[model] = (*self._labels.get(model, ()), position)
        if self.params.classes:
            self._words = Words(self._texts)
            self._nearest_words = Nearest(self._words.rows, self._marks)

    def take_vectors(self, by: str, vectors: "NDArray[np.float32]") -> None:
        """The vectors of all examples."""
        from pointsman_model_selector.domain.nearest import Nearest

        self._nearest, self._by = Nearest(vectors, self._marks), f"{by}:{vectors.shape[1]}"

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        compared, missing = self._by_meaning(question)
        if compared is None and self.params.classes:
            compared = self._by_class_words(question, missing)
        if compared is None:
            self._remark = (question, _lexical(missing) if _values(question) else "no text to match")
            return self._by_words(question, candidates)
        self._remark = (question, compared.remark)
        shares = compared.shares
        return [max((shares[label] for label in self._labels.get(each.name, ())), default=0.0) for each in candidates]

    def remark(self, question: ModelQuestion) -> str | None:
        asked, remark = self._remark
        return remark if asked is question else None

    def _by_meaning(self, question: ModelQuestion) -> tuple[_Compared | None, str]:
        embedding = question.embedding
        if embedding is None or self.params.embeddings is None:
            return None, ""
        if embedding.vector is None:
            return None, embedding.missing
        if self._nearest is None:
            return None, "the examples aren't embedded yet"
        # A service may come to answer with another model's vectors under the same name.
        if f"{embedding.by}:{len(embedding.vector)}" != self._by:
            return None, "prompt and examples are of different models"
        return self._compared(self._nearest.closeness(embedding.vector), embedding.by), ""

    def _by_class_words(self, question: ModelQuestion, missing: str) -> _Compared | None:
        values = _values(question)
        if values is None or self._words is None or self._nearest_words is None:
            return None
        closeness = self._nearest_words.closeness(self._words.row(decode(values)))
        return self._compared(closeness, _lexical(missing))

    def _compared(self, closeness: Sequence[float], by: str) -> _Compared:
        from pointsman_model_selector.domain.nearest import shares

        found = shares(closeness, self.params.least, self.params.margin)
        best = max(range(len(closeness)), key=closeness.__getitem__)
        close = f"{self._names[best]} {closeness[best]:.2f}" if found[best] else "nothing close"
        return _Compared(found, f"{by}, {close}")

    def _by_words(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        values = _values(question)
        if values is None or not self._strengths:
            return [0.0] * len(candidates)
        asked = decode(values)
        found = [similarity(asked, self._strengths[candidate.name], self._weights) for candidate in candidates]
        best = max(found)
        if best < self.params.least:
            return [0.0] * len(candidates)
        return [value / best if value >= self.params.least else 0.0 for value in found]


def _described(candidate: Candidate) -> list[str]:
    return [text for text in (candidate.strengths, *candidate.examples) if text]


def _lexical(missing: str) -> str:
    return f"{LEXICAL} ({missing})" if missing else LEXICAL


def _values(question: ModelQuestion) -> str | None:
    produced = question.journey.request.attributes.get(PROMPT_VECTOR.name)
    if not isinstance(produced, dict) or produced.get("kind") != LEXICAL:
        return None
    return str(produced.get("values"))
