"""What the user said last: the text that tells what a request is about."""

from pointsman_preprocessor.domain.body import Completion, Content, Document, Embedding, Responses


def last_words(content: Content, limit: int) -> str:
    """The last message of a user, or the first prompt that is a text; its first and its last characters when it is
    longer than `limit`. Empty when there is no text."""
    if isinstance(content, Completion):
        text = next((prompt for prompt in content.prompts if isinstance(prompt, str)), "")
    elif isinstance(content, Embedding):
        return ""
    else:
        messages = content.input if isinstance(content, Responses) else content.messages
        text = next((_text(message) for message in reversed(messages) if message.get("role") == "user"), "")
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]} {text[-half:]}"


def _text(message: Document) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return " ".join(text for text in texts if isinstance(text, str))
