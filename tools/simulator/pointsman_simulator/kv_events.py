"""The changes of the engine's cache as the events that vLLM publishes (its `distributed/kv_events.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pointsman_simulator.tokens import Tokens


@dataclass(slots=True)
class _Block:
    parent: int | None
    tokens: list[int]
    lora: str | None
    salt: str | None
    """Salt of the first block of a prompt; the other blocks differ by their parent."""
    users: int = 0
    cached: bool = False
    kept: bool = False
    """In host memory."""


class BlockBook:
    """Remembers the content of each block while a sequence uses it or the cache holds it."""

    def __init__(self, block_size: int) -> None:
        self._block_size: Final = block_size
        self._blocks: Final[dict[int, _Block]] = {}
        self._left: Final[list[int]] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def open_sequence(self, names: Sequence[int], tokens: Tokens, lora: str | None, salt: str | None) -> None:
        """A sequence with these blocks begins."""
        size = self._block_size
        parent: int | None = None
        for position, name in enumerate(names):
            block = self._blocks.get(name)
            if block is None:
                ids: list[int] = tokens[position * size : (position + 1) * size].tolist()
                block = self._blocks[name] = _Block(parent, ids, lora, salt if parent is None else None)
            block.users += 1
            parent = name

    def close_sequence(self, names: Sequence[int]) -> None:
        """It ended."""
        for name in names:
            block = self._blocks.get(name)
            if block is not None:
                block.users -= 1
                self._left.append(name)

    def build_events(self, stored: Sequence[int], removed: Sequence[int]) -> list[list[object]]:
        """The cache's changes as events; consecutive blocks share one."""
        events: list[list[object]] = []
        gone = [name for name in removed if name in self._blocks]
        if gone:
            events.append(["BlockRemoved", gone, "GPU"])
        for name in gone:
            self._blocks[name].cached = False
            self._left.append(name)
        run: list[int] = []
        for name in stored:
            block = self._blocks.get(name)
            if block is None:
                continue
            block.cached = True
            if run and block.parent != run[-1]:
                events.append(self._stored(run))
                run = []
            run.append(name)
        if run:
            events.append(self._stored(run))
        for name in self._left:
            block = self._blocks.get(name)
            if block is not None and not (block.users or block.cached or block.kept):
                del self._blocks[name]
        self._left.clear()
        return events

    def host_events(self, stored: Sequence[int], removed: Sequence[int]) -> list[list[object]]:
        """The changes of host memory, as vLLM's offloading reports them: names alone."""
        events: list[list[object]] = []
        for medium_has, names in ((False, removed), (True, stored)):
            known = [name for name in names if name in self._blocks]
            for name in known:
                self._blocks[name].kept = medium_has
                self._left.append(name)
            if known and medium_has:
                events.append(["BlockStored", known, None, [], 0, None, "CPU", None, None])
            elif known:
                events.append(["BlockRemoved", known, "CPU"])
        return events

    def _stored(self, run: list[int]) -> list[object]:
        blocks = [self._blocks[name] for name in run]
        first = blocks[0]
        tokens = [token for block in blocks for token in block.tokens]
        keys = [[key for key in (block.lora, block.salt) if key is not None] or None for block in blocks]
        lora_id = None if first.lora is None else 1
        return ["BlockStored", run, first.parent, tokens, self._block_size, lora_id, "GPU", first.lora, keys]
