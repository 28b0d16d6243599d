"""A request on its way through an engine, and the passes that compute its prompt."""

from typing import Final, NamedTuple

from msgspec import Struct

from pointsman_delay.pass_model import PREFILL
from pointsman_plugins.scheduling.arrays import Floats

TOGETHER_MS: Final = 5.0
"""First tokens of one pass are reported within this time of each other, and within half the pass."""
_TOGETHER_SHARE: Final = 0.1
"""A busy edge reports those of a long pass further apart: within this share of the pass."""


class Sent(Struct, eq=False, gc=False):
    """A request on its way through the engine. Times in milliseconds."""

    told: bool
    """Whether the first token will be reported; it isn't for an answer without streaming."""
    sent: float
    prompt: int
    """Tokens."""
    hit: int
    """Those that the engine is assumed to hold."""
    uncached: int
    left: int
    """Prompt tokens that no pass has taken up."""
    started: float | None = None
    generated: float = 0.0
    batch_time: float = 0.0
    context_time: float = 0.0
    passed: Floats | None = None

    @property
    def awaits_first_token(self) -> bool:
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
    until: float
    """Until when other first tokens of this pass may be reported."""


def report_pass(before: Floats, features: Floats, parts: list[PromptPart], since: float, at: float) -> ReportedPass:
    """A pass, when the first of its first tokens is reported."""
    passes = max(1.0, before.item(PREFILL) + features.item(PREFILL))
    until = at + max(TOGETHER_MS, _TOGETHER_SHARE * (at - since) / passes)
    return ReportedPass(before, features, parts, since, at, until=until)
