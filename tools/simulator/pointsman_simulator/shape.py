"""The form of an answer in each API."""

from typing import Protocol

from pointsman_simulator.api import AnswerUsage, Generation
from pointsman_simulator.choice_shape import ChoiceShape
from pointsman_simulator.message_shape import MessageShape
from pointsman_simulator.response_shape import ResponseShape


class AnswerShape(Protocol):
    """Writes the body or the stream events of one answer."""

    def write_opening(self, index: int) -> bytes:
        """The bytes before the first token of a choice."""
        ...

    def write_tokens(self, index: int, words: list[str]) -> bytes:
        """One event per token. Words need no escaping."""
        ...

    def write_closing(self, index: int, reason: str) -> bytes:
        """The bytes after the last token of a choice; `reason` is `stop` or `length`."""
        ...

    def end_stream(self, usage: AnswerUsage) -> bytes: ...

    def build_body(self, answers: list[tuple[str, str]], usage: AnswerUsage) -> bytes:
        """The body of an answer that is not streamed, from (text, finish reason) of each choice."""
        ...


def shape_of(request: Generation, answer_id: str, ids: list[list[int]] | None = None) -> AnswerShape:
    """The shape of the answer to `request`. `ids`: the tokens of each choice, where the answer has them."""
    if request.surface == "responses":
        return ResponseShape(request, answer_id)
    if request.surface == "messages":
        return MessageShape(request, answer_id)
    return ChoiceShape(request, answer_id, ids)
