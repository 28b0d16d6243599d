"""The description of an API: one value, made of data and functions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import msgspec
from pydantic import JsonValue

from pointsman_apis.errors import openai_error, openai_error_event
from pointsman_apis.fields import Document, FieldReader, Fields
from pointsman_apis.streams import KEEP_ALIVE, StreamEvent
from pointsman_apis.texts import Answer, Slot
from pointsman_apis.usage import UsageTail
from pointsman_core.refusal import Refusal

NONE: Final[frozenset[str]] = frozenset()


class View(msgspec.Struct, frozen=True, gc=False):
    """The prompt of a request: a conversation, or prompts. Exactly one of the two is set."""

    messages: list[Document] | None = None
    """The turns of a conversation."""
    head: tuple[JsonValue, ...] = ()
    """Members that a chat template renders before the turns: tools, documents, instructions, its own arguments."""
    prompts: list[str | list[int]] | None = None
    """Texts, or the token ids of texts."""
    answers: int = 1
    """Answers that the engine generates."""


class StreamEnd(Protocol):
    """Follows a stream, to end it before its time."""

    def note_event(self, event: StreamEvent) -> None:
        """An event has left for the client."""
        ...

    def end_as_filtered(self) -> bytes:
        """The events that end a stream early because its content was filtered, in the API's form."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The description of one API."""

    name: str
    """Same as `RequestFacts.api`."""
    path: str
    """Path of its requests, e.g. `/v1/chat/completions`. `{id}` in it stands for the id of a response, `{model}` for
    the model's name, which the body then doesn't have, and `{version}` for the model's version."""
    also: tuple[str, ...] = ()
    """Further paths with the same meaning, which some engines have."""
    methods: tuple[str, ...] = ("POST",)
    body: Literal["json", "form", "none"] = "json"
    """The content of its requests: a JSON object, `multipart/form-data`, or nothing."""
    passed: bool = False
    """It passes as it is: the body needs no model, any string in it may be a text for the model, and any string in the
    answer may be one from it."""

    # The request.
    fields: Fields
    """Types and bounds of the body's members; others pass unchecked."""
    view: Callable[[Document, list[str]], View]
    """Reads the prompt; adds an entry to the list for each part that isn't text, e.g. `vision`. Raises Refusal 400."""
    in_prompt: frozenset[str] = NONE
    """Members that are serialised with the prompt, which bounds how deep they nest."""
    output_limits: tuple[str, ...] = ()
    """Members that limit the output in tokens, the stronger one first."""
    generates: bool = True
    """Whether it answers with generated text, whose tokens are counted where the engine reports none."""
    streams: bool = False
    """Whether every answer is a stream, without a member of the body that asks for one."""
    template: Literal["chat", "messages", "responses", "text"] | None = None
    """How the engine makes tokens of the prompt: by its chat template, from the API's own form; as plain text; None:
    neither."""
    keeps_prefix: bool = True
    """Whether engines keep the prompt's blocks in their prefix cache."""
    usage_option: bool = False
    """Whether `stream_options.include_usage` makes a stream end with its usage."""

    # The answer.
    slots: Callable[[Answer], Iterable[Slot]]
    """The texts of a whole answer or of one event of a stream, empty ones too."""
    repeats: bool = False
    """Whether later events of a stream repeat the texts of earlier ones as a whole."""
    echoed: frozenset[str] = NONE
    """Members of the answer that repeat the request."""
    usage: Callable[[], UsageTail] = UsageTail
    """Makes a reader of the answer's usage."""
    end: Callable[[], StreamEnd]
    error: Callable[[Refusal], bytes] = openai_error
    """The body of an error."""
    error_event: Callable[[Refusal], bytes] = openai_error_event
    """The last event of a stream that fails. Clients raise it; no `[DONE]` follows."""
    keep_alive: bytes = KEEP_ALIVE
    """An event that keeps the connection of a silent stream open; clients pass over it."""
    request_id_header: bytes | None = None
    """A second header for the request id, which the API's clients read."""

    # Whether an answer may be given again.
    conversation: str = ""
    """The member whose last turn decides whether another request asks the same; empty for none."""
    ends: Callable[[Answer], Iterable[str]]
    """Why the answers in a document or event ended."""
    complete: frozenset[str] = NONE
    """Those reasons that say that an answer is complete. Empty: its answers are never given again."""
    tool_ends: frozenset[str] = NONE
    """Those reasons that say that an answer calls tools."""
    calls_tools: Callable[[Answer], bool] = field(default=lambda _: False)
    """Whether a document or event has calls of tools, where the reasons don't say so."""
    last_data: bytes = b""
    """Data of the last event of a complete stream; empty where any event may be the last."""

    reader: FieldReader = field(init=False, repr=False, compare=False)
    """Reads the top level of its bodies."""

    def __post_init__(self) -> None:
        reader = FieldReader(
            self.fields,
            identifiers=not self.passed,
            in_prompt=self.in_prompt,
            output_limits=self.output_limits,
        )
        object.__setattr__(self, "reader", reader)
