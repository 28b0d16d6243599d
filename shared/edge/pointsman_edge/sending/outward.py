"""A decision's edits of the body, as they are for a provider."""

from collections.abc import Sequence
from typing import Final

from pointsman_contracts.journey import BodyEdit

ENGINE_ONLY: Final = frozenset({"cache_salt"})
"""Fields that preprocessing sets for our engines; a provider has nothing to do with them."""


def outward(edits: Sequence[BodyEdit]) -> list[BodyEdit]:
    """Without what is meant for engines of our own."""
    return [BodyEdit(field=edit.field, remove=True) if edit.field in ENGINE_ONLY else edit for edit in edits]
