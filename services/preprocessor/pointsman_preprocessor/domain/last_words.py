"""The user's last words: the text that says most about a request's subject."""

from pointsman_apis.fields import Document
from pointsman_apis.requests import StructuredBody


def last_words(body: StructuredBody, limit: int) -> str:
    """The last message of a user, or the first prompt that is a text; its first and its last characters when it is
    longer than `limit`. Empty when there is no text, and for an API that generates none."""
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
