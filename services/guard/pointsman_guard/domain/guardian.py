"""The common part of detectors that call a guardian over HTTP."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self, TypeVar, cast

from pydantic import Field, JsonValue, model_validator

from pointsman_core.header_names import SettableHeader
from pointsman_core.references import HttpUrl, SecretReference
from pointsman_core.units import PositiveDuration
from pointsman_core.url_addresses import check_url
from pointsman_plugins.guarding import ANY_ROLE, Checked, Detector, DetectorFailed, Finding, Outside
from pointsman_plugins.plugin import Params

Object = dict[str, JsonValue]


class GuardianParams(Params):
    """Parameters of every detector that calls a guardian over HTTP."""

    url: HttpUrl
    """URL of the guardian, with its path."""
    private: bool = False
    """`url` may lead to a private address."""
    credential: SecretReference | None = None
    """A reference, never a secret: `env:NAME` or `file:PATH`, read by the guard. Sent as a bearer token."""
    headers: dict[SettableHeader, str] = Field(default_factory=dict[str, str])
    """Further headers; no secrets."""
    timeout: PositiveDuration = 0.5
    """Timeout, after which the detector has failed."""
    roles: tuple[str, ...] = ("user", "tool", "assistant")
    """Roles whose prompt texts are sent; `*` is every role. All texts of an answer are sent."""

    @model_validator(mode="after")
    def _may_be_asked(self) -> Self:
        check_url(self.url, private=self.private)
        return self


GuardianParamsT_co = TypeVar("GuardianParamsT_co", bound=GuardianParams, covariant=True)


class Guardian(Detector[GuardianParamsT_co]):
    """Sends texts to a guardian, and reads its findings."""

    waits: ClassVar[bool] = True

    def setup(self) -> None:
        self._outside: Outside | None = None

    def bind(self, outside: Outside) -> None:
        """Get the connection; see `Detector.bind`."""
        self._outside = outside

    async def detect(self, checked: Checked) -> Sequence[Finding]:
        """Send one question about all texts."""
        asks = self.params
        any_role = checked.direction == "response" or ANY_ROLE in asks.roles
        shown = [at for at, text in enumerate(checked.texts) if any_role or text.role in asks.roles]
        if not shown:
            return ()
        if self._outside is None:
            raise DetectorFailed("isn't bound")
        answer = await self._outside.post(
            asks.url,
            self.build_question(checked, shown),
            credential=asks.credential,
            headers=asks.headers,
            timeout_s=asks.timeout,
            private=asks.private,
        )
        return self.read_findings(answer, checked, shown)

    @abstractmethod
    def build_question(self, checked: Checked, shown: Sequence[int]) -> Object:
        """The question about the texts of these numbers."""

    @abstractmethod
    def read_findings(self, answer: JsonValue, checked: Checked, shown: Sequence[int]) -> Sequence[Finding]:
        """The findings in the answer. Raises DetectorFailed for an invalid answer."""


def member(value: JsonValue, name: str) -> JsonValue:
    """A member of an object; None of anything else."""
    return cast("Object", value).get(name) if isinstance(value, dict) else None
