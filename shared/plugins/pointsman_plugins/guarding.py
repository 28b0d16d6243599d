"""The extension point for detectors: they check texts and report findings."""

from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from pointsman_plugins.plugin import ParamsT_co, Plugin

Direction = Literal["request", "response"]

ANY_ROLE = "*"


class CheckedText(NamedTuple):
    """One text of a prompt or of an answer."""

    part: str
    """Which one: a path in the request's body, e.g. `messages[0].content`, or `AnswerText.part`."""
    role: str
    """The speaker: `system`, `user`, `assistant` or `tool`; always `assistant` in an answer."""
    text: str


class Finding(NamedTuple):
    """Something that a detector found. It never carries the text itself."""

    category: str
    """Dotted, the general first: `pii.card`."""
    detector: str
    """The instance's name."""
    at: int | None = None
    """Which text it stands in; None when it stands in no single one, e.g. across two messages."""
    start: int = 0
    end: int = 0
    """Where, in characters of that text; equal when that isn't known, e.g. in something encoded."""

    @property
    def located(self) -> bool:
        """Whether it has a place that can be redacted."""
        return self.at is not None and self.end > self.start


class Checked(msgspec.Struct, frozen=True):
    """The texts that a detector checks."""

    direction: Direction
    policy: str
    request_id: str
    texts: Sequence[CheckedText]

    @property
    def size(self) -> int:
        """Characters."""
        return sum([len(text.text) for text in self.texts])


class DetectorFailed(Exception):
    """A detector can't give a result: the service that it calls is missing, slow or answers nonsense. The message is
    for operators and contains none of the checked text."""


class TextEmbedder(Protocol):
    """Turns texts into vectors of length 1."""

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A row for each text; what of a text is longer than the model sees doesn't count."""
        ...


class Outside(Protocol):
    """A detector's access to things outside this process. The service provides it."""

    async def post(
        self,
        url: str,
        document: JsonValue,
        *,
        credential: str | None,
        headers: Mapping[str, str],
        timeout_s: float,
        private: bool,
    ) -> JsonValue:
        """Send JSON, get JSON. `credential`: a reference as in `providers`, sent as a bearer token; `private`: `url`
        may lead to a private address. Raises DetectorFailed."""
        ...

    def read(self, path: str) -> bytes:
        """A file's content. Raises OSError."""
        ...

    def embedder(self, folder: str) -> TextEmbedder:
        """The embedding model in a folder of this machine. Raises OSError or ValueError when it can't be used."""
        ...


class Detector(Plugin[ParamsT_co]):
    """Looks at texts. Instances live as long as a configuration and are shared by all requests."""

    group = "pointsman.guard.detectors"
    stability = "beta"

    waits: ClassVar[bool] = False
    """Whether it may take longer than an edge waits for an answer."""

    @property
    def categories(self) -> Sequence[str]:
        """The categories that it can report with a place, as far as known in advance."""
        return ()

    def bind(self, outside: Outside) -> None:
        """Take what it may reach. Raises PluginError; called once, before `detect`."""
        del outside

    @abstractmethod
    def detect(self, checked: Checked) -> Sequence[Finding] | Awaitable[Sequence[Finding]]:
        """Its findings. Returns an awaitable only when it must wait for a peer; raises DetectorFailed."""
