"""The expected and the maximum length of an answer."""

from typing import Final

from pointsman_apis.facts import max_output_tokens
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.domain.limits.output_lengths import OutputLengths

UNKNOWN_LENGTH: Final = 1024
"""Expected tokens of an answer while too few lengths are known."""
UNLIMITED_LENGTH: Final = 4096
"""Maximum tokens of an answer assumed for a request without a limit."""


def answer_length(incoming: Incoming, lengths: OutputLengths, tenant: str, configured: int | None) -> tuple[int, int]:
    """Tokens of one answer: expected, and at most as far as the request says. `configured` goes before what `lengths`
    learned of this tenant's answers (empty: of all)."""
    most = max_output_tokens(incoming.body)
    if configured is not None:
        return (configured, configured) if most is None else (min(most, configured), most)
    expected = lengths.expected(tenant, incoming.model) or UNKNOWN_LENGTH
    return (expected, max(expected, UNLIMITED_LENGTH)) if most is None else (min(most, expected), most)
