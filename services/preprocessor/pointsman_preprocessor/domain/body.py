"""The structured body: one decoded document and exactly one typed view of it (S4-1, S4-2, S4-16)."""

from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import JsonValue

Document = dict[str, JsonValue]


@dataclass(slots=True)
class Chat:
    """`/v1/chat/completions`, with the fields of Hugging Face chat templates (S4-3)."""

    api: ClassVar[str] = "chat.completions"

    messages: list[Document]
    tools: list[JsonValue] | None
    documents: list[JsonValue] | None
    chat_template: str | None
    chat_template_kwargs: Document | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    return_assistant_tokens_mask: bool | None


@dataclass(slots=True)
class Completion:
    """`/v1/completions`. Each prompt is a text or a list of token ids."""

    api: ClassVar[str] = "completions"

    prompts: list[str | list[int]]


@dataclass(slots=True)
class Embedding:
    """`/v1/embeddings`. Each input is a text or a list of token ids."""

    api: ClassVar[str] = "embeddings"

    inputs: list[str | list[int]]


@dataclass(slots=True)
class Responses:
    """`/v1/responses`. A text input is one user message."""

    api: ClassVar[str] = "responses"

    input: list[Document]
    instructions: str | None
    tools: list[JsonValue] | None
    previous_response_id: str | None


@dataclass(slots=True)
class Messages:
    """`/v1/messages` (Anthropic)."""

    api: ClassVar[str] = "messages"

    messages: list[Document]
    system: str | list[JsonValue] | None
    tools: list[JsonValue] | None


Content = Chat | Completion | Embedding | Responses | Messages
"""A union, so that exactly one variant is set."""

MEDIA: Final = {
    "image_url": "vision",
    "image": "vision",
    "input_image": "vision",
    "computer_screenshot": "vision",
    "video_url": "video",
    "video": "video",
    "input_audio": "audio",
    "audio_url": "audio",
    "file": "file",
    "input_file": "file",
    "document": "file",
}
"""Type of a content part that isn't text → what it asks of a model."""


@dataclass(slots=True)
class StructuredBody:
    """What a client sent: the bytes, the decoded document (with every field it doesn't know) and the view of it."""

    raw: bytes | memoryview
    document: Document
    content: Content
    media: tuple[str, ...] = ()
    """What the content parts that aren't text ask of a model, e.g. `vision`; one entry per part."""

    @property
    def api(self) -> str:
        """`chat.completions`, `completions`, `embeddings`, `responses` or `messages`."""
        return self.content.api

    @property
    def model(self) -> str:
        """The model that the client asks for."""
        return str(self.document["model"])
