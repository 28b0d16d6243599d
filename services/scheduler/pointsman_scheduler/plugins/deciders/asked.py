"""Decides by what a request asks for: `prompt-length`, `header`."""

from pydantic import Field

from pointsman_plugins.plugin import Params
from pointsman_plugins.scheduling.points import Decider
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import Run


class PromptLengthParams(Params):
    at_least: int = Field(ge=1)
    """Tokens."""


class PromptLength(Decider[PromptLengthParams]):
    """Prompts of at least so many tokens."""

    type_name = "prompt-length"

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        return request.facts.prompt_tokens >= self.params.at_least


class HeaderParams(Params):
    header: str = Field(min_length=1)
    """Name of the header, in any case."""
    values: tuple[str, ...] = ()
    """Values that count; without them any value does, but an empty one."""


class HasHeader(Decider[HeaderParams]):
    """Requests with a header."""

    type_name = "header"

    def setup(self) -> None:
        self._header = self.params.header.lower()
        self._values = frozenset(self.params.values)
        self.reads_headers = (self._header,)

    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        value = request.facts.headers.get(self._header, "").strip()
        return value in self._values if self._values else bool(value)
