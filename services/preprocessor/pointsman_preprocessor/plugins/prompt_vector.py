"""`prompt-vector`: what the user's last words are about, for selectors that match them with the strengths of models."""

from typing import Final

from pointsman_core.lexical import LEXICAL, PROMPT_VECTOR, encode, vector
from pointsman_plugins.preprocessing import Incoming, RequestProcessor
from pointsman_preprocessor.domain.last_words import last_words

_LONGEST: Final = 2048
"""Characters that are looked at: a quarter of a millisecond."""


class PromptVector(RequestProcessor):
    """Produces the vector of the last user message, or of the prompt. Runs by itself when a selector needs it."""

    type_name = "prompt-vector"
    produces = (PROMPT_VECTOR,)

    def process(self, incoming: Incoming) -> None:
        found = vector(last_words(incoming.body, _LONGEST))
        if found:
            incoming.write(PROMPT_VECTOR, {"kind": LEXICAL, "values": encode(found)})
