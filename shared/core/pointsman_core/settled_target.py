"""The target of a journey, once it is settled, and the hashes of the prompt's blocks, which are tied to it.

The preprocessor hashes the prompt before a model is chosen (`model: auto`). The stage that settles the target folds
model and adapter into every hash, so that equal prompts for different models share no block.
"""

import hashlib
from functools import lru_cache
from typing import Final

from pointsman_contracts.journey import BodyEdit, Journey, JourneyChanges, Target
from pointsman_contracts.message import Blob
from pointsman_contracts.model_choice import ModelChoice

HASH_BYTES: Final = 8


@lru_cache(maxsize=4096)
def salt(*scope: str) -> int:
    """A 64-bit number that stands for these names; different lists of names give different numbers."""
    return int.from_bytes(_salt(*scope), "little")


@lru_cache(maxsize=4096)
def _salt(*scope: str) -> bytes:
    text = "".join(f"{len(part)}:{part}" for part in scope)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()


def salted(blocks: bytes, *scope: str) -> Blob:
    """`blocks` with `salt(scope)` folded into each hash (exclusive or, so that doing it twice undoes it)."""
    size, read = len(blocks), int.from_bytes
    mask = _salt(*scope) * (size // HASH_BYTES)
    return Blob((read(blocks, "little") ^ read(mask, "little")).to_bytes(size, "little"))


def settled(journey: Journey, target: Target, block_tokens: int | None = None) -> JourneyChanges:
    """The changes. `block_tokens` is of the target's pool; None at a provider and where it isn't known: the scheduler
    looks whether the blocks have its pool's size.

    The blocks become the target's own: equal prompts for other models or adapters share none.
    """
    before = journey.target if journey.joint is None else None
    facts = journey.request if block_tokens is None else journey.request.in_blocks_of(block_tokens)
    if facts.blocks:
        plain = facts.blocks if before is None else salted(facts.blocks, before.model, before.lora or "")
        facts = facts.of_target(salted(plain, target.model, target.lora or ""))
    kept = tuple([edit for edit in journey.body if edit.field != "model"]) if journey.body else ()
    body = kept if target.model == journey.model else (*kept, _named(target.model))
    changes: JourneyChanges = {"target": target, "request": facts, "body": body}
    if journey.joint is not None:
        changes["joint"] = None
    return changes


def left_open(journey: Journey, choice: ModelChoice, target: Target) -> JourneyChanges:
    """The changes for a journey whose model the scheduler chooses. `target`: of the options, the one to which the
    journey is sent first. The prompt's blocks stay as they are, in the sizes of all pools."""
    changes = settled(journey, target)
    changes["request"], changes["joint"] = journey.request, choice
    return changes


@lru_cache(maxsize=1024)
def _named(model: str) -> BodyEdit:
    return BodyEdit(field="model", value=model)
