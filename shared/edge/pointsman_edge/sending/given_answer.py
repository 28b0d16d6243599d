"""An answer that a stage gave, as the client gets it."""

from typing import Final

from pointsman_contracts.reply import Answer
from pointsman_edge.sending.model_name import renaming

_ERROR: Final = 400


def answer_headers(answer: Answer) -> list[tuple[bytes, bytes]]:
    """Its headers, before those that stages change."""
    return [
        (b"content-type", answer.content_type.encode("ascii", "replace")),
        (b"x-pointsman-level", answer.level.encode("ascii", "replace")),
    ]


def answer_body(answer: Answer) -> bytes:
    """Its body with the model's name that the client asked for."""
    name = renaming(answer.named, answer.model) if answer.named and answer.model else None
    if name is None:
        return answer.body
    return name.put(answer.body) if answer.status < _ERROR else name.put_in_error(answer.body)
