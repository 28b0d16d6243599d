"""The model's name in an answer: the client gets back the name that it asked for, and reads which model answered."""

import re
from functools import lru_cache
from typing import Final

import orjson

from pointsman_contracts.journey import Target
from pointsman_core.prices import Prices

_FORMS: Final = (b'"model":', b'"model": ')


class ModelName:
    """Puts `asked` where an engine wrote `served`.

    A search in the bytes suffices: inside a JSON string every quote is escaped, so `"model":"…"` is always a member.
    """

    __slots__ = ("_asked", "_replacements", "_served")

    def __init__(self, served: str, asked: str) -> None:
        old, new = orjson.dumps(served), orjson.dumps(asked)
        self._replacements = tuple((form + old, form + new) for form in _FORMS)
        # A name within a longer one is another model's.
        self._served = re.compile(rb"(?<![\w.:/@-])" + re.escape(old[1:-1]) + rb"(?![\w:/@-]|\.\w)")
        self._asked = new[1:-1]

    def rewrite_bytes(self, data: bytes) -> bytes:
        """`data` must not end within a member: whole events, or a whole document."""
        for old, new in self._replacements:
            data = data.replace(old, new)
        return data

    def put_in_error(self, data: bytes) -> bytes:
        """A whole error document, whose words name the model too."""
        return self._served.sub(lambda _: self._asked, self.rewrite_bytes(data))

    def in_pieces(self) -> "PassingName":
        """A renamer for a document that passes as it arrives."""
        return PassingName(self, tuple(old for old, _ in self._replacements))


class PassingName:
    """Puts the name into one document, wherever it is split: bytes that may begin a member wait."""

    __slots__ = ("_held", "_longest", "_members", "_name")

    def __init__(self, name: ModelName, members: tuple[bytes, ...]) -> None:
        self._name = name
        self._members = members
        self._longest = max(map(len, members))
        self._held = b""

    def rewrite_part(self, data: bytes) -> bytes:
        """Take the next bytes from the engine; returns the bytes for the client."""
        data = self._held + data
        # A member that begins before it is here whole, and one that ends after it must not be cut.
        cut = max(len(data) - self._longest + 1, 0)
        for member in self._members:
            begins = data.rfind(member, max(cut - len(member) + 1, 0))
            if begins >= 0:
                cut = max(cut, begins + len(member))
        self._held = data[cut:]
        return self._name.rewrite_bytes(data[:cut])

    def rest(self) -> bytes:
        """The bytes that are held, after the engine has ended the document."""
        held, self._held = self._held, b""
        return self._name.rewrite_bytes(held)


@lru_cache(maxsize=256)
def renaming(served: str, asked: str) -> ModelName | None:
    """Renames `served` to `asked`; None if both are the same."""
    return ModelName(served, asked) if served != asked else None


HEADER: Final = b"x-pointsman-model"
_UNSAFE: Final = re.compile(r"[^\x20-\x7e]")


def chosen_model(prices: Prices, target: Target, asked: str) -> list[tuple[bytes, bytes]]:
    """The header, with the name that the configuration has for the target; none where the client asked for that."""
    name = prices.find_name(target, asked)
    return [] if name == asked else [(HEADER, _UNSAFE.sub("?", name).encode())]
