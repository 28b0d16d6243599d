"""A classifier with OpenAI's moderation API."""

from collections.abc import Sequence

from pydantic import Field, JsonValue

from pointsman_guard.domain.guardian import Guardian, GuardianParams, Object, member
from pointsman_plugins.guarding import Checked, DetectorFailed, Finding


class ModerationParams(GuardianParams):
    """Parameters of `openai-moderation`."""

    model: str | None = None
    """Default: the service's own model."""
    prefix: str = "moderation"
    """Categories are `<prefix>.<the service's name for it>`, e.g. `moderation.violence`."""
    thresholds: dict[str, float] = Field(default_factory=dict[str, float])
    """Minimum scores by the service's category, or `*`; a category without one is found when the service flags it."""


class Moderation(Guardian[ModerationParams]):
    """Sends one question for all texts."""

    type_name = "openai-moderation"

    def build_question(self, checked: Checked, shown: Sequence[int]) -> Object:
        """The question; see `Guardian.build_question`."""
        document: Object = {"input": [checked.texts[at].text for at in shown]}
        if self.params.model is not None:
            document["model"] = self.params.model
        return document

    def read_findings(self, answer: JsonValue, checked: Checked, shown: Sequence[int]) -> Sequence[Finding]:
        """The findings; see `Guardian.read_findings`."""
        results = member(answer, "results")
        if not isinstance(results, list) or len(results) != len(shown):
            raise DetectorFailed("gave an answer without a result for each text")
        return [
            Finding(f"{self.params.prefix}.{category}", self.name, at)
            for at, result in zip(shown, results, strict=True)
            for category in self._flagged(result)
        ]

    def _flagged(self, result: JsonValue) -> list[str]:
        flags, scores = member(result, "categories"), member(result, "category_scores")
        if not isinstance(flags, dict):
            raise DetectorFailed("gave a result without categories")
        thresholds = self.params.thresholds
        found: list[str] = []
        for category, flag in flags.items():
            threshold = thresholds.get(category, thresholds.get("*"))
            score = scores.get(category) if isinstance(scores, dict) else None
            if threshold is not None and isinstance(score, int | float):
                flag = score >= threshold  # noqa: PLW2901 - the operator's word counts
            if flag is True:
                found.append(category)
        return found
