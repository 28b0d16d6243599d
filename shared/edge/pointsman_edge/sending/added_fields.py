"""Fields that the gateway adds to requests, and which providers refuse them."""

from collections.abc import Sequence
from typing import Final

from pointsman_contracts.journey import BodyEdit
from pointsman_providers.resolve import Resolved

REMEMBERED_S: Final = 3600.0
"""How long a refusal is remembered: services learn fields."""
_Place = tuple[str, str, str]
"""Provider, model and field."""


class AddedFields:
    """Known from each provider's answers: only it knows the fields that it takes."""

    def __init__(self) -> None:
        self._refused: dict[_Place, float] = {}
        """When each was refused, on the monotonic clock."""
        self._taken: set[_Place] = set()

    def keep_accepted(self, provider: Resolved, model: str, edits: Sequence[BodyEdit], now: float) -> list[BodyEdit]:
        """The edits without the fields that this provider refuses."""
        return [
            edit
            for edit in edits
            if not (edit.unasked and not edit.remove and self._is_refused(provider, model, edit.field, now))
        ]

    def suspect_fields(self, provider: Resolved, model: str, edits: Sequence[BodyEdit], error: bytes) -> list[str]:
        """The added fields that may be why the provider refused a request: fields that the error names, and fields that
        this provider has never taken."""
        return [
            edit.field
            for edit in edits
            if edit.unasked
            and not edit.remove
            and (edit.field.encode() in error or (provider.name, model, edit.field) not in self._taken)
        ]

    def record_refusal(self, provider: Resolved, model: str, fields: Sequence[str], now: float) -> None:
        """The provider refused a request because of these."""
        for field in fields:
            self._refused[provider.name, model, field] = now
            self._taken.discard((provider.name, model, field))

    def record_acceptance(self, provider: Resolved, model: str, edits: Sequence[BodyEdit]) -> None:
        """The provider answered a request that had these."""
        for edit in edits:
            if edit.unasked:
                self._taken.add((provider.name, model, edit.field))

    def _is_refused(self, provider: Resolved, model: str, field: str, now: float) -> bool:
        if field in provider.settings.omit_added:
            return True
        since = self._refused.get((provider.name, model, field))
        return since is not None and now - since < REMEMBERED_S
