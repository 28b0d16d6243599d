"""A classifier with OpenAI's moderation API."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, cast

from pydantic import Field, JsonValue

from pointsman_core.plugins import Params, Plugin
from pointsman_core.units import Duration
from pointsman_guard.domain.checking import Checked, Detector, DetectorFailed, Finding, Outside

Object = dict[str, JsonValue]


class GuardianParams(Params):
    """Parameters of every detector that asks somebody over HTTP."""

    url: str = Field(pattern=r"^https?://")
    """Where it is asked, with its path."""
    credential: str | None = Field(default=None, pattern=r"^(env|file):.+$")
    """A reference, never a secret: `env:NAME` or `file:PATH`, read by the guard. Sent as a bearer token."""
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    """Further headers; no secrets."""
    timeout: Duration = 0.5
    """How long it may take; then it has failed."""
    roles: tuple[str, ...] = ("user", "tool", "assistant")
    """Whose texts of a prompt it gets; `*` is everybody's."""


class ModerationParams(GuardianParams):
    """Parameters of `openai-moderation`."""

    model: str | None = None
    """Default: the service's own."""
    prefix: str = "moderation"
    """Categories are `<prefix>.<the service's name for it>`, e.g. `moderation.violence`."""
    thresholds: dict[str, float] = Field(default_factory=dict[str, float])
    """Scores by the service's category, or `*`, from which on it is found; without one what the service flags is."""


class Moderation(Detector):
    """Asks once for all texts."""

    type_name: ClassVar[str] = "openai-moderation"
    params_type: ClassVar[type[Params]] = ModerationParams

    def __init__(self, name: str, params: ModerationParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._params: Final = params
        self._outside: Outside | None = None

    def bind(self, outside: Outside) -> None:
        """As `Detector.bind`."""
        self._outside = outside

    async def detect(self, checked: Checked) -> Sequence[Finding]:
        """What the service flags, by text."""
        params = self._params
        shown = shown_to(checked, params.roles)
        if not shown or self._outside is None:
            return ()
        document: Object = {"input": [checked.texts[at].text for at in shown]}
        if params.model is not None:
            document["model"] = params.model
        answer = await self._outside.post(
            params.url, document, credential=params.credential, headers=params.headers, timeout_s=params.timeout
        )
        results = member(answer, "results")
        if not isinstance(results, list) or len(results) != len(shown):
            raise DetectorFailed("gave an answer without a result for each text")
        return [
            Finding(f"{params.prefix}.{category}", self.name, at)
            for at, result in zip(shown, results, strict=True)
            for category in self._flagged(result)
        ]

    def _flagged(self, result: JsonValue) -> list[str]:
        flags, scores = member(result, "categories"), member(result, "category_scores")
        if not isinstance(flags, dict):
            raise DetectorFailed("gave a result without categories")
        thresholds = self._params.thresholds
        found: list[str] = []
        for category, flag in flags.items():
            threshold = thresholds.get(category, thresholds.get("*"))
            score = scores.get(category) if isinstance(scores, dict) else None
            if flag is True if threshold is None or not isinstance(score, int | float) else score >= threshold:
                found.append(category)
        return found


def shown_to(checked: Checked, roles: Sequence[str]) -> list[int]:
    """Which texts a guardian gets: of an answer all."""
    everybody = checked.direction == "response" or "*" in roles
    return [at for at, text in enumerate(checked.texts) if everybody or text.role in roles]


def member(value: JsonValue, name: str) -> JsonValue:
    """A member of an object; None of anything else."""
    return cast("Object", value).get(name) if isinstance(value, dict) else None
