"""How long an answer will probably be, and how long it may be."""

from typing import Final

from pointsman_apis.facts import max_output_tokens
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.domain.limits.output_lengths import OutputLengths

UNKNOWN_LENGTH: Final = 1024
"""Tokens of an answer that are expected while too little is known of its length."""
UNLIMITED_LENGTH: Final = 4096
"""Tokens that an answer is taken to have at most where the request has no limit."""


def answer_length(incoming: Incoming, lengths: OutputLengths, tenant: str, configured: int | None) -> tuple[int, int]:
    """Tokens of one answer: expected, and at most as far as the request says. `configured` goes before what `lengths`
    learned of this tenant's answers (empty: of all)."""
    most = max_output_tokens(incoming.body)
    if configured is not None:
        return (configured, configured) if most is None else (min(most, configured), most)
    expected = lengths.expected(tenant, incoming.model) or UNKNOWN_LENGTH
    return (expected, max(expected, UNLIMITED_LENGTH)) if most is None else (min(most, expected), most)
