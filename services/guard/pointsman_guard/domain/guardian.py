"""What detectors that ask somebody over HTTP have in common."""

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
    """Parameters of every detector that asks somebody over HTTP."""

    url: HttpUrl
    """Where it is asked, with its path."""
    private: bool = False
    """`url` may lead to a private address."""
    credential: SecretReference | None = None
    """A reference, never a secret: `env:NAME` or `file:PATH`, read by the guard. Sent as a bearer token."""
    headers: dict[SettableHeader, str] = Field(default_factory=dict[str, str])
    """Further headers; no secrets."""
    timeout: PositiveDuration = 0.5
    """How long it may take; then it has failed."""
    roles: tuple[str, ...] = ("user", "tool", "assistant")
    """Whose texts of a prompt it gets; `*` is everybody's. Of an answer it gets all."""

    @model_validator(mode="after")
    def _may_be_asked(self) -> Self:
        check_url(self.url, private=self.private)
        return self


GuardianParamsT_co = TypeVar("GuardianParamsT_co", bound=GuardianParams, covariant=True)


class Guardian(Detector[GuardianParamsT_co]):
    """Shows texts to somebody, and reads what they say."""

    waits: ClassVar[bool] = True

    def setup(self) -> None:
        self._outside: Outside | None = None

    def bind(self, outside: Outside) -> None:
        """As `Detector.bind`."""
        self._outside = outside

    async def detect(self, checked: Checked) -> Sequence[Finding]:
        """One question about all texts that it gets."""
        asks = self.params
        everybody = checked.direction == "response" or ANY_ROLE in asks.roles
        shown = [at for at, text in enumerate(checked.texts) if everybody or text.role in asks.roles]
        if not shown:
            return ()
        if self._outside is None:
            raise DetectorFailed("isn't bound")
        answer = await self._outside.post(
            asks.url,
            self.question(checked, shown),
            credential=asks.credential,
            headers=asks.headers,
            timeout_s=asks.timeout,
            private=asks.private,
        )
        return self.findings(answer, checked, shown)

    @abstractmethod
    def question(self, checked: Checked, shown: Sequence[int]) -> Object:
        """What is sent, about the texts of these numbers."""

    @abstractmethod
    def findings(self, answer: JsonValue, checked: Checked, shown: Sequence[int]) -> Sequence[Finding]:
        """What the answer says. Raises DetectorFailed for one that can't be understood."""


def member(value: JsonValue, name: str) -> JsonValue:
    """A member of an object; None of anything else."""
    return cast("Object", value).get(name) if isinstance(value, dict) else None
