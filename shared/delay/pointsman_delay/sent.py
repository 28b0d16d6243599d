"""A request on its way through an engine, and the passes that compute its prompt."""

from typing import Final, NamedTuple

from pointsman_plugins.scheduling.arrays import Floats


class Sent:
    """A request on its way through the engine."""

    __slots__ = (
        "batch_time",
        "context_time",
        "generated",
        "hit",
        "left",
        "passed",
        "prompt",
        "sent",
        "started",
        "told",
        "uncached",
    )

    def __init__(self, now: float, prompt: int, hit: int, *, told: bool) -> None:
        self.told: Final = told
        """Whether the first token will be reported; it isn't for an answer without streaming."""
        self.sent: Final = now
        self.prompt: Final = prompt
        self.hit: Final = hit
        self.uncached: Final = prompt - hit
        self.left = self.uncached
        """Prompt tokens that no pass has taken up."""
        self.started: float | None = None
        self.generated = self.batch_time = self.context_time = 0.0
        self.passed: Floats | None = None

    @property
    def unheard(self) -> bool:
        """Whether its first token will be reported and wasn't yet."""
        return self.told and self.started is None


class PromptPart(NamedTuple):
    """The tokens of one prompt in one pass."""

    request: Sent
    tokens: int
    pairs: float
    """Pairs of these tokens and what came before them."""
    last: bool
    """Whether the prompt ends with them."""


class ReportedPass(NamedTuple):
    """A pass whose end was reported. Times in milliseconds."""

    before: Floats
    """Features of the passes between `since` and this one."""
    features: Floats
    parts: list[PromptPart]
    since: float
    """The last end of a pass that was reported before."""
    at: float
