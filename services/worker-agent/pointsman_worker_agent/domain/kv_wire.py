"""Decodes the messages of vLLM and SGLang about their KV caches, and names the tier that each block is in.

A batch is `[ts, events, data_parallel_rank]`, an event `[kind, field, …]`; recent vLLM sends both as maps of the same
fields. Fields were only ever added at the end, so a missing field has its default and an unknown one is skipped.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from pointsman_contracts.kv import DISK, HOST, STORE, STORE_NAME

EngineHash = int | bytes
"""The engine's own name of a block; covers everything before it."""

INDEXABLE: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""KV groups whose blocks mean that the whole prefix is there; sliding windows and states don't."""
DEVICE: Final = ""
"""The tier that an engine computes from: a block in any other one has to be fetched first."""
MEDIA: Final = {
    "GPU": DEVICE, "CPU": HOST, "CPU_PINNED": HOST, "CPU_TIER1": HOST, "DISK": DISK, "STORAGE": DISK, "CPU_TIER2": DISK,
    "EXTERNAL": STORE,
}  # fmt: skip
"""Medium in capitals → tier. vLLM has GPU, CPU and STORAGE; SGLang GPU, CPU_PINNED, DISK and EXTERNAL, and in some
releases CPU_TIER1 and CPU_TIER2; LMCache and Mooncake `cpu`."""

_BATCH: Final = ("ts", "events", "data_parallel_rank")
_STORED: Final = (
    "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality",
)  # fmt: skip
_REMOVED: Final = ("type", "block_hashes", "medium", "group_idx", "locality")


class MalformedBatch(ValueError):
    """The payload isn't a batch of KV events. Names the field, never quotes tokens."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """A run of blocks of one prompt is in the cache."""

    hashes: list[EngineHash]
    parent: EngineHash | None
    """The block before the first; None at the start of a prompt."""
    tokens: list[int]
    block_size: int
    lora: str | None = None
    extra: Sequence[object] | None = None
    """For each block what its hash covers besides tokens, or None."""
    group: int = 0
    tier: str = DEVICE
    """As in `pointsman_contracts.kv.TIERS`. Below the device vLLM may name blocks alone: then `tokens` are empty."""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """These blocks left the cache, wherever in a prompt they are."""

    hashes: list[EngineHash]
    group: int = 0
    tier: str = DEVICE
    """The one that they left; the others keep theirs."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks left: those on the device, and those that the engine keeps below it."""


Event = BlocksStored | BlocksRemoved | Cleared


class Decoder:
    """Decodes the batches of one publisher. Remembers the KV groups to ignore, since removals don't name them."""

    def __init__(self, store: str = "", store_media: Collection[str] = ()) -> None:
        """`store`: name of the shared store that the engine reaches. `store_media`: further media that mean it."""
        self.unknown_media = 0
        """Events of a medium that stands for no tier."""
        self._store: Final = STORE + STORE_NAME + store if store else STORE
        self._store_media: Final = frozenset(medium.upper() for medium in store_media)
        self._decode: Final = msgspec.msgpack.Decoder()
        self._skipped: set[int] = set()

    def decode(self, payload: bytes) -> list[Event]:
        """The events of a batch that matter here, in order. Raises MalformedBatch."""
        try:
            document = self._decode.decode(payload)
        except msgspec.DecodeError as error:
            raise MalformedBatch("not MessagePack") from error
        events = _fields(document, _BATCH, "batch").get("events")
        if not isinstance(events, list):
            raise MalformedBatch("a batch without a list of events")
        found: list[Event] = []
        for event in cast("list[object]", events):
            kind = _kind(event)
            if kind == "BlockStored":
                found += self._stored(_fields(event, _STORED, "BlockStored"))
            elif kind == "BlockRemoved":
                found += self._removed(_fields(event, _REMOVED, "BlockRemoved"))
            elif kind == "AllBlocksCleared":
                found.append(Cleared())
        return found

    def _stored(self, fields: dict[str, object]) -> list[Event]:
        group = _number(fields.get("group_idx"), "group_idx")
        tier = self._tier(fields)
        kind = fields.get("kv_cache_spec_kind")
        if not isinstance(kind, str | None) or kind not in INDEXABLE:
            self._skipped.add(group)
            return []
        if tier is None or (kind is None and group in self._skipped):
            return []
        tokens = fields.get("token_ids")
        size = _number(fields.get("block_size"), "block_size")
        hashes = _hashes(fields)
        if tier and not tokens:
            return [BlocksStored(hashes, None, [], 0, tier=tier)]
        if not isinstance(tokens, list) or size < 1 or len(cast("list[object]", tokens)) < size * len(hashes):
            raise MalformedBatch("BlockStored: token_ids don't fill its blocks")
        lora, extra, parent = fields.get("lora_name"), fields.get("extra_keys"), fields.get("parent_block_hash")
        if parent is not None and not isinstance(parent, int | bytes):
            raise MalformedBatch("BlockStored: parent_block_hash isn't a hash")
        return [
            BlocksStored(
                hashes=hashes,
                parent=parent,
                tokens=cast("list[int]", tokens),
                block_size=size,
                lora=lora if isinstance(lora, str) else None,
                extra=cast("list[object]", extra) if isinstance(extra, list) else None,
                group=group,
                tier=tier,
            )
        ]

    def _removed(self, fields: dict[str, object]) -> list[Event]:
        group = _number(fields.get("group_idx"), "group_idx")
        tier = self._tier(fields)
        if group in self._skipped or tier is None:
            return []
        return [BlocksRemoved(_hashes(fields), group, tier)]

    def _tier(self, fields: dict[str, object]) -> str | None:
        """None for a medium that stands for no tier."""
        medium, locality = fields.get("medium"), fields.get("locality")
        if medium is None:
            return DEVICE
        if not isinstance(medium, str):
            raise MalformedBatch("medium isn't a text")
        name = medium.upper()
        tier = MEDIA.get(name)
        if name in self._store_media or tier == STORE or (tier and locality == "REMOTE"):
            return self._store
        if tier is None:
            self.unknown_media += 1
        return tier


def _kind(event: object) -> object:
    if isinstance(event, dict):
        return cast("dict[object, object]", event).get("type")
    row = cast("list[object]", event) if isinstance(event, list) else []
    return row[0] if row else None


def _fields(value: object, names: tuple[str, ...], what: str) -> dict[str, object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value)
    if isinstance(value, list):
        return dict(zip(names, cast("list[object]", value), strict=False))
    raise MalformedBatch(f"{what}: neither a list nor a map")


def _hashes(fields: dict[str, object]) -> list[EngineHash]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list):
        raise MalformedBatch("block_hashes isn't a list")
    for each in cast("list[object]", hashes):
        if not isinstance(each, int | bytes):
            raise MalformedBatch("block_hashes: neither numbers nor bytes")
    return cast("list[EngineHash]", hashes)


def _number(value: object, name: str) -> int:
    if value is None:
        return 0
    if not isinstance(value, int):
        raise MalformedBatch(f"{name} isn't a number")
    return value
