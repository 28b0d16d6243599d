"""The tokenizer of a pool's models, for exact token counts and prefix blocks."""

from typing import Literal

from pydantic import Field, JsonValue

from pointsman_core.config.section import Section
from pointsman_core.units import ByteSize


class Tokenizer(Section):
    """A tokenizer on the preprocessors' disks, and the engines' settings for chat templates."""

    path: str = Field(min_length=1)
    """Folder with `tokenizer.json`, `tokenizer_config.json` and, if the template isn't in there, `chat_template.jinja`;
    nothing is ever downloaded."""
    chat_template: str | None = None
    """File with another chat template, as the engines' `--chat-template`."""
    content_format: Literal["auto", "string", "openai"] = "auto"
    """As the engines' `--chat-template-content-format`; `auto` follows the template."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """As the engines' `--default-chat-template-kwargs`."""
    trust_request_chat_template: bool = False
    """As the engines' switch of that name: whether a template that a client sends is rendered."""
    max_bytes: ByteSize = 2 * 2**20
    """Larger bodies are hashed as text."""
