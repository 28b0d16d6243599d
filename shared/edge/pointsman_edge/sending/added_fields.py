"""Fields without effect on an answer, which the gateway or a client put into a request, and which providers refuse
them."""

from collections.abc import Sequence
from typing import Final

from pointsman_contracts.journey import BodyEdit
from pointsman_providers.resolve import Resolved

REMEMBERED_S: Final = 3600.0
"""How long a refusal is remembered: services learn fields."""
HINTS: Final = ("prompt_cache_key", "prompt_cache_retention", "safety_identifier")
"""Fields of clients that change no answer. Codex sends the first to every service; some refuse it."""
_Place = tuple[str, str, str]
"""Provider, model and field."""


def named_hints(error: bytes) -> list[str]:
    """The hints that an error document names."""
    return [hint for hint in HINTS if hint.encode() in error]


def removals(fields: Sequence[str]) -> list[BodyEdit]:
    """The edits that leave fields out."""
    return [BodyEdit(field=field, remove=True) for field in fields]


class AddedFields:
    """Known from each provider's answers: only it knows the fields that it takes."""

    def __init__(self) -> None:
        self._refused: dict[_Place, float] = {}
        """When each was refused, on the monotonic clock."""
        self._taken: set[_Place] = set()

    def keep_accepted(self, provider: Resolved, model: str, edits: Sequence[BodyEdit], now: float) -> list[BodyEdit]:
        """The edits without the fields that this provider refuses, and with the removal of such hints."""
        kept = [
            edit
            for edit in edits
            if not (edit.unasked and not edit.remove and self._is_refused(provider, model, edit.field, now))
        ]
        kept.extend(removals([hint for hint in HINTS if self._is_refused(provider, model, hint, now)]))
        return kept

    def suspect_fields(self, provider: Resolved, model: str, edits: Sequence[BodyEdit], error: bytes) -> list[str]:
        """The added fields that may be why the provider refused a request: fields that the error names, and fields that
        this provider has never taken."""
        return [
            edit.field
            for edit in edits
            if edit.unasked
            and not edit.remove
            and (edit.field.encode() in error or not self.has_taken(provider, model, edit.field))
        ]

    def has_taken(self, provider: Resolved, model: str, field: str) -> bool:
        """Whether the provider has answered a request that had this field, and hasn't refused it since."""
        return (provider.name, model, field) in self._taken

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
