"""The extension point of answers: processors in the edge's process see head, every segment and end of an answer.

A processor reads the answer as it comes from the engine or provider. It may set headers of the client's response while
only the head is here; text is changed by stages that review responses, which also hold it back.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from pointsman_contracts.content import PromptEnd
from pointsman_contracts.journey import HeaderEdit, Target
from pointsman_contracts.message import Blob
from pointsman_contracts.response import Usage
from pointsman_core.config import Config
from pointsman_plugins.plugin import ParamsT_co, Plugin


class AnswerHead(msgspec.Struct, eq=False, kw_only=True):
    """An answer whose body begins."""

    request_id: str
    api: str
    """The API of the request."""
    profile: str
    model: str
    """The model that the client asked for."""
    target: Target
    """The model that answers."""
    worker: str
    """The engine that answers, or the provider's name."""
    status: int
    stream: bool
    headers: Mapping[str, str]
    """The answer's headers as the client gets them, without edits; lower-case names."""
    answers: int = 1
    """Answers that the request asks for."""
    block_tokens: int | None = None
    """Tokens of a block of the target's pool; None at a provider."""
    end: PromptEnd | None = None
    """The prompt's end; None where it isn't known, or belongs to another model than the target."""
    edits: dict[str, HeaderEdit] = {}

    def set_header(self, name: str, value: str | None) -> None:
        """Set a header of the client's response; None removes it."""
        name = name.lower()
        self.edits[name] = HeaderEdit(name=name, value=value)


class AnswerEnd(msgspec.Struct, eq=False, kw_only=True):
    """The end of an answer."""

    outcome: str
    """How the attempt ended (`ResponseCompleted.outcome`); `moved` where another endpoint answers in place of this
    one."""
    status: int
    usage: Usage | None
    """The settled usage; None when no model was at work for the client."""
    blocks: Blob | None = None
    """`ResponseCompleted.answer_blocks`: a follower may set it."""


class AnswerFollower:
    """Follows one answer. Both methods do nothing unless they are overridden."""

    def take_segment(self, data: bytes) -> None:
        """The next bytes of the body: whole events of a stream, as a rule, or a part of a document."""

    def end_answer(self, end: AnswerEnd) -> None:
        """The answer is over. Called once, whatever happened, before the request's end is published."""


class ResponseProcessor(Plugin[ParamsT_co]):
    """Sees the answers of its profile. Its errors are counted and logged, and change no answer."""

    group = "pointsman.edge.response_processors"
    stability = "alpha"

    reads_token_ids: ClassVar[bool] = False
    """Whether the frontend asks engines that can (vLLM) for the token ids of prompt and answer. The client doesn't get
    them unless it asked for them too."""

    def check_config(self, config: Config) -> None:
        """Check the parameters against the whole configuration. Raises PluginError; called once."""
        del config

    @abstractmethod
    def begin_answer(self, head: AnswerHead) -> AnswerFollower | None:
        """The head of an answer is here. Returns the follower of its segments and its end. None: no more of the answer
        is needed, and it costs nothing more."""
