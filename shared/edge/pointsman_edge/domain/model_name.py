"""The model's name in an answer: the client gets back the name that it asked for."""

from functools import lru_cache
from typing import Final

import orjson

_FORMS: Final = (b'"model":', b'"model": ')


class ModelName:
    """Puts `asked` where an engine wrote `served`.

    A search in the bytes suffices: inside a JSON string every quote is escaped, so `"model":"…"` is always a member.
    """

    def __init__(self, served: str, asked: str) -> None:
        old, new = orjson.dumps(served), orjson.dumps(asked)
        self._replacements = tuple((form + old, form + new) for form in _FORMS)

    def put(self, data: bytes) -> bytes:
        """`data` must not end within a member: whole events, or a whole document."""
        for old, new in self._replacements:
            data = data.replace(old, new)
        return data


@lru_cache(maxsize=256)
def renaming(served: str, asked: str) -> ModelName | None:
    """What renames `served` to `asked`; None when both are the same."""
    return ModelName(served, asked) if served != asked else None
