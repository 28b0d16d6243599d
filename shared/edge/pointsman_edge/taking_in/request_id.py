"""The id that a request has everywhere: the client's own when it is usable, otherwise a new one."""

import itertools
import re
import secrets
from collections.abc import Container
from typing import Final

LONGEST: Final = 128
_USABLE: Final = re.compile(rb"[A-Za-z0-9._:-]{1,%d}" % LONGEST)
_ROOM_FOR_A_SUFFIX: Final = LONGEST - 24


class RequestIds:
    """Ids that are unique within this edge, and among all edges as far as it made them itself."""

    def __init__(self) -> None:
        self._prefix = f"req-{secrets.token_hex(6)}-"
        self._numbers = itertools.count(1)

    def new(self) -> str:
        """A new id, unique among all edges."""
        return f"{self._prefix}{next(self._numbers):x}"

    def of(self, headers: list[tuple[bytes, bytes]], in_use: Container[str]) -> str:
        """The id of a request with these (lower-case) headers.

        A client's id that is still in use gets a suffix: stages and reservations know a request by its edge and its id.
        """
        # The first one counts.
        value = dict(reversed(headers)).get(b"x-request-id")
        if value is None or not _USABLE.fullmatch(value):
            return f"{self._prefix}{next(self._numbers):x}"
        given = value.decode("ascii")
        if given not in in_use:
            return given
        return f"{given[:_ROOM_FOR_A_SUFFIX]}.{secrets.token_hex(3)}{next(self._numbers):x}"
