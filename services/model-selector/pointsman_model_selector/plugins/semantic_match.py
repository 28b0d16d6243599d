"""`semantic-match`: models whose described strengths are about what the prompt is about."""

from collections.abc import Sequence

from pydantic import Field

from pointsman_core.lexical import LEXICAL, PROMPT_VECTOR, Vector, decode, rarity, similarity, vector
from pointsman_core.plugins import PluginError
from pointsman_plugins.plugin import Params
from pointsman_plugins.selecting import Candidate, ModelQuestion, ModelScorer


class SemanticMatchParams(Params):
    """The least similarity of a match."""

    least: float = Field(default=0.05, ge=0, le=1)
    """Least similarity of prompt and strengths; below it they count as unrelated."""


class SemanticMatch(ModelScorer[SemanticMatchParams]):
    """1 for the model whose `strengths` are closest to the prompt, others by their share of that; 0 for all when none
    is close. It compares words, and the decision says so: `semantic-match: lexical`."""

    type_name = "semantic-match"
    consumes = (PROMPT_VECTOR,)

    def setup(self) -> None:
        self._strengths: dict[str, Vector] = {}
        self._weights: list[float] = []

    def bind(self, candidates: Sequence[Candidate]) -> None:
        if candidates and not any(candidate.strengths for candidate in candidates):
            names = ", ".join(candidate.name for candidate in candidates)
            raise PluginError(f"{self.name!r} needs `strengths` of a model; none of {names} has them")
        self._strengths = {candidate.name: vector(candidate.strengths) for candidate in candidates}
        self._weights = rarity(self._strengths.values())

    def scores(self, question: ModelQuestion, candidates: Sequence[Candidate]) -> list[float]:
        values = _values(question)
        if values is None:
            return [0.0] * len(candidates)
        asked = decode(values)
        found = [similarity(asked, self._strengths[candidate.name], self._weights) for candidate in candidates]
        best = max(found)
        if best < self.params.least:
            return [0.0] * len(candidates)
        return [value / best if value >= self.params.least else 0.0 for value in found]

    def remark(self, question: ModelQuestion) -> str | None:
        return "no text to match" if _values(question) is None else LEXICAL


def _values(question: ModelQuestion) -> str | None:
    produced = question.journey.request.attributes.get(PROMPT_VECTOR.name)
    if not isinstance(produced, dict) or produced.get("kind") != LEXICAL:
        return None
    return str(produced.get("values"))
