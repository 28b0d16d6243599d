"""KV-cache events of engines: the prefix blocks that they hold.

Blocks are named as in `RequestFacts.blocks` of a request whose prompt is token ids: XXH3-64 of the block's ids
(little-endian, 4 bytes each), seeded with the hash of the block before it, the first one with
`pointsman_core.settled_target.salt("", cache_salt, "ids")`; then salted by model and adapter (`salted` there).
No token leaves the agent.

A block may be in several tiers at once. An engine computes from its device alone, and fetches blocks of the other tiers
first: host memory, its own disk, a store.
"""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from pointsman_contracts.message import NO_BYTES, Address, Blob, Message, Part, always

HOST: Final = "host"
DISK: Final = "disk"
STORE: Final = "store"
"""A store whose engines aren't known. A store with a name is `store:<name>`: each engine that reaches it can read every
block in it, whichever engine wrote the block."""
STORE_NAME: Final = ":"
"""Between `STORE` and its name."""
OWN_TIERS: Final = (HOST, DISK, STORE)
"""The tiers below its device that an engine has for itself, the fastest first."""
IN_TIER: Final = "@"
"""Between the operation and the tier of a change below the device."""


class KvChange(Part, frozen=True, kw_only=True):
    """Blocks that came into a cache, or left it."""

    op: str
    """`stored`, `removed`, or `cleared` (all of them left), on the device. Below it with `@` and the tier, e.g.
    `stored@host`: unknown to earlier readers, which pass over it. `stored@store:<name>` without blocks says that the
    engine reaches that store."""
    blocks: Blob = always(NO_BYTES)
    """Hashes, little-endian, 8 bytes each; a run of one prompt in its order where it is one."""


class WorkerKvEvents(Message, frozen=True, kw_only=True):
    """Changes of a worker's KV cache since the last message. Published by its agent, and without changes at
    least every 400 ms, so that a lost last message is missed. Read by schedulers."""

    address: ClassVar[Address] = Address("sig", "worker", "kv", route=("pool", "worker"))

    worker: str
    pool: str
    boot_id: str
    """The life of the engine that this is about."""
    agent: str
    """Instance that counts `sequence`; another one counts anew."""
    sequence: int
    """Number of the last message with changes: this one or, if it has none, the one before. Counts from 1."""
    at_ms: int
    block_tokens: int
    """Tokens in one of these blocks."""
    changes: tuple[KvChange, ...] = always(())


class WorkerKvQuery(Message, frozen=True, kw_only=True):
    """Asks an agent for changes that were missed. Sent by schedulers; answered with `WorkerKvState`."""

    address: ClassVar[Address] = Address("ctl", "worker", "kv-query", route=("pool", "worker"))

    since: int = always(0)
    """The last sequence known; 0 asks for everything held."""
    agent: str = always("")
    """Who counted `since`."""
    offset: int = always(0)
    """Blocks of the snapshot `as_of` that the asker has already."""
    as_of: int | None = None
    """Sequence of the snapshot to go on with; None for a new one."""
    tiers: bool = always(False)
    """Whether the snapshot shall have the tiers below the device, too."""


class KvTier(Part, frozen=True, kw_only=True):
    """The blocks of one tier in a snapshot."""

    tier: str
    blocks: int
    """How many."""


class WorkerKvState(Message, frozen=True, kw_only=True):
    """The answer to `WorkerKvQuery`: the missed changes where they are still at hand, else a part of everything."""

    address: ClassVar[Address] = Address("ctl", "worker", "kv-state", route=("inbox",))

    boot_id: str
    agent: str
    sequence: int
    """The number that the receiver has reached with this answer (for a snapshot: with all its parts)."""
    changes: tuple[KvChange, ...] = always(())
    """After `since`, in order; empty when this is a snapshot."""
    snapshot: bool = always(False)
    """Whether `held` replaces what is known."""
    held: Blob = always(NO_BYTES)
    """Blocks of the snapshot from `offset` on, as `KvChange.blocks`."""
    offset: int = always(0)
    total: Annotated[int, Meta(ge=0)] = always(0)
    """Blocks of the whole snapshot."""
    tiers: tuple[KvTier, ...] = always(())
    """The last blocks of the snapshot are those below the device, in this order; those before them are on it."""
