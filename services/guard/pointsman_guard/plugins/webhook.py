"""An operator's own check: the service gets the texts and returns its findings, with their places if known."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from pointsman_guard.domain.guardian import Guardian, GuardianParams, Object
from pointsman_plugins.guarding import Checked, DetectorFailed, Finding


class WebhookFinding(BaseModel):
    """One finding in a webhook's answer."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    category: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.\-]+$")
    part: str | None = None
    """The part's name as it was sent; None: in no single text."""
    start: int = Field(default=0, ge=0)
    end: int = Field(default=0, ge=0)
    """In characters of that text; omitted when unknown, and then the finding can't be redacted."""


class WebhookAnswer(BaseModel):
    """A webhook's answer, e.g. `{"findings": [{"category": "codename", "part": "prompt", "start": 3, "end": 9}]}`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    findings: tuple[WebhookFinding, ...]


class Webhook(Guardian[GuardianParams]):
    """Sends `{"direction", "policy", "request_id", "texts": [{"part", "role", "text"}]}`."""

    type_name: ClassVar[str] = "webhook"

    def build_question(self, checked: Checked, shown: Sequence[int]) -> Object:
        """The question; see `Guardian.build_question`."""
        return {
            "direction": checked.direction,
            "policy": checked.policy,
            "request_id": checked.request_id,
            "texts": [dict(checked.texts[at]._asdict()) for at in shown],
        }

    def read_findings(self, answer: JsonValue, checked: Checked, shown: Sequence[int]) -> Sequence[Finding]:
        """The findings; see `Guardian.read_findings`."""
        try:
            said = WebhookAnswer.model_validate(answer)
        except ValidationError:
            raise DetectorFailed("gave an answer that doesn't match the schema of webhooks") from None
        places = {checked.texts[at].part: at for at in shown}
        found: list[Finding] = []
        for each in said.findings:
            at = None if each.part is None else places.get(each.part)
            inside = at is not None and each.start < each.end <= len(checked.texts[at].text)
            span = (each.start, each.end) if inside else (0, 0)
            found.append(Finding(each.category, self.name, at, *span))
        return found
