"""The changes of a journey whose target is settled. Pure."""

from functools import lru_cache

from pointsman_contracts.journey import BodyEdit, Journey, JourneyChanges, Target
from pointsman_core.prefix import salted


def settled(journey: Journey, target: Target, block_tokens: int | None = None) -> JourneyChanges:
    """The changes. `block_tokens` is of the target's pool; None at a provider and where it isn't known: the scheduler
    looks whether the blocks have its pool's size.

    The blocks become the target's own: equal prompts for other models or adapters share none.
    """
    before = journey.target
    facts = journey.request if block_tokens is None else journey.request.in_blocks_of(block_tokens)
    if facts.blocks:
        plain = facts.blocks if before is None else salted(facts.blocks, before.model, before.lora or "")
        blocks = salted(plain, target.model, target.lora or "")
        facts = facts.changed(blocks=blocks, other_chains=())
    kept = tuple([edit for edit in journey.body if edit.field != "model"]) if journey.body else ()
    body = kept if target.model == journey.model else (*kept, _named(target.model))
    return {"target": target, "request": facts, "body": body}


@lru_cache(maxsize=1024)
def _named(model: str) -> BodyEdit:
    return BodyEdit(field="model", value=model)
