"""Texts of questions whose answers are under way, for the gate that compares texts. They never leave the process: a
replica that stores an answer without having looked the request up stores it without its text."""

from collections import OrderedDict
from typing import Final, NamedTuple

from pointsman_semantic_cache.domain.entry import Partition

MOST_BYTES: Final = 16 * 2**20
"""The most bytes of all texts; the oldest one is forgotten first."""
LONGEST_S: Final = 600.0
"""A request that is refused after the lookup never has an answer: its text goes after this."""


class Asking(NamedTuple):
    """A request under way. A client may choose the id, so the id alone identifies neither sender nor question."""

    request_id: str
    partition: Partition
    key: bytes
    """`Asked.exact`."""


class _Text(NamedTuple):
    text: str
    size: int
    until_s: float


class OpenQuestions:
    """The open questions of one process. Times are of any monotonic clock."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes: Final = most_bytes
        self._texts: Final[OrderedDict[Asking, _Text]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    def remember_text(self, asking: Asking, text: str, now_s: float) -> None:
        """Keep the text until the answer comes."""
        self.take_text(asking)
        size = len(text.encode("utf-8", "surrogatepass"))
        self._texts[asking] = _Text(text, size, now_s + LONGEST_S)
        self._bytes += size
        while self._bytes > self._most_bytes:
            self.take_text(next(iter(self._texts)))

    def take_text(self, asking: Asking) -> str | None:
        """Remove and return the text; None when this process doesn't have it."""
        found = self._texts.pop(asking, None)
        if found is None:
            return None
        self._bytes -= found.size
        return found.text

    def expire_texts(self, now_s: float) -> None:
        """Forget texts whose answers never came."""
        while self._texts:
            asking, oldest = next(iter(self._texts.items()))
            if oldest.until_s > now_s:
                return
            self.take_text(asking)

    def purge_texts(self, cache: str | None, tenant: str | None) -> None:
        """Forget the texts of a cache and a tenant (as `Partition.tenant`); None: of all."""
        gone = [
            asking
            for asking in self._texts
            if cache in (None, asking.partition.cache) and tenant in (None, asking.partition.tenant)
        ]
        for asking in gone:
            self.take_text(asking)
