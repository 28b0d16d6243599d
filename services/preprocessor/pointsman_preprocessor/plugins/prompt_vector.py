"""`prompt-vector`: the vector of a request's last message, for the `semantic-match` of models."""

from typing import Final

from pointsman_apis.fields import Document
from pointsman_apis.requests import StructuredBody
from pointsman_core.lexical import LEXICAL, PROMPT_VECTOR, encode, vector
from pointsman_plugins.preprocessing import Incoming, RequestProcessor

_LONGEST: Final = 2048
"""Most characters that are read: takes 0.25 ms."""


class PromptVector(RequestProcessor):
    """Produces the vector of the last user message, or of the prompt. Added automatically when a selector needs it."""

    type_name = "prompt-vector"
    produces = (PROMPT_VECTOR,)

    def process(self, incoming: Incoming) -> None:
        found = vector(last_words(incoming.body, _LONGEST))
        if found:
            incoming.write(PROMPT_VECTOR, {"kind": LEXICAL, "values": encode(found)})


def last_words(body: StructuredBody, limit: int) -> str:
    """A user's last message, or the first text prompt; only its first and last characters when it is longer than
    `limit`. Empty without text, and for an API that doesn't generate any."""
    if not body.api.generates:
        return ""
    view = body.view
    if view.messages is None:
        text = next((prompt for prompt in view.prompts or () if isinstance(prompt, str)), "")
    else:
        text = next((_text(message) for message in reversed(view.messages) if message.get("role") == "user"), "")
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} {text[-half:]}"


def _text(message: Document) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return " ".join(text for text in texts if isinstance(text, str))
