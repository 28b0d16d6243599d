"""Cascades: a cheap model answers first, and a larger one when that answer isn't confident."""

from typing import Final

from pointsman_contracts.message import Part, always

ESCALATED: Final = "escalated"
"""`Attempt.outcome` of an answer that a cascade didn't give to the client."""
CONFIDENT: Final = "confident"
UNCONFIDENT: Final = "unconfident"
UNKNOWN: Final = "unknown"
LATE: Final = "late"
FAILED: Final = "failed"
LAST: Final = "last"


class ConfidenceRule(Part, frozen=True, kw_only=True):
    """When an answer is good enough that no larger model is asked."""

    mean_logprob: float | None = None
    """Least mean of the tokens' log probabilities, natural logarithm. None: they don't count."""
    low_logprob: float | None = None
    """Least log probability of the tokens' lowest tenth: at most a tenth of the tokens may be less probable."""
    refusal: bool = always(True)
    """An answer that the model or its provider marks as refused isn't confident."""
    phrases: tuple[str, ...] = ()
    """An answer that begins with one of these, whatever the case of its letters, is refused as well."""
    length: str = always("unlimited")
    """An answer that ended at a limit of tokens isn't confident: `always`, `unlimited` (where the client set no limit),
    or `never`."""
    form: bool = always(True)
    """JSON that the request asked for, and arguments of tools, must be JSON."""
    unknown: str = always("escalate")
    """Where a rule can't be checked, the answer is `escalate`d (treated as unconfident) or `accept`ed."""

    @property
    def reads_logprobs(self) -> bool:
        """Whether engines have to report log probabilities."""
        return self.mean_logprob is not None or self.low_logprob is not None


class AnswerConfidence(Part, frozen=True, kw_only=True):
    """The judgement of a cascade about one answer."""

    verdict: str
    """`confident`, `unconfident`, `unknown` (a rule couldn't be checked), `late` (it took too long), `failed` (there is
    no answer), `last` (of the cascade's last model: it isn't judged)."""
    why: str = ""
    """In words without content of request or answer."""
    mean_logprob: float | None = None
    """Mean log probability of its tokens; None when it is unknown."""
    low_logprob: float | None = None
    """Log probability below which a tenth of them are."""
