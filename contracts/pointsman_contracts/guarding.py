"""The guard's findings about a prompt, for later stages."""

from collections.abc import Mapping
from typing import Final, Self

import msgspec

from pointsman_contracts.message import JsonValue, Part, always

GUARDED: Final = "guard"
"""The attribute of a request (`RequestFacts.attributes`) in which a guard says what it found. A stage that keeps
something of the request or its answer, as a cache does, keeps `epoch` with it: under another epoch it must be checked
anew. An answer with `restores` must not be kept at all, because the answer has the client's own data in it."""


class Guarded(Part, frozen=True, kw_only=True):
    """The value of that attribute: the last guard's, with the categories of all guards."""

    policy: str
    """The guard's policy."""
    epoch: str
    """Identifies all guard policies together, for prompts and answers. It changes whenever a verdict may change."""
    verdict: str = always("passed")
    """`passed`, `flagged`, or `redacted`: the engine gets placeholders. A blocked request goes no further."""
    categories: tuple[str, ...] = always(())
    """Category of the finding, e.g. `pii.card`."""
    restores: bool = always(False)
    """On the way back the originals are put in again."""

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, JsonValue]) -> Self | None:
        """From `RequestFacts.attributes`; None when no guard has seen the request."""
        value = attributes.get(GUARDED)
        try:
            return None if value is None else msgspec.convert(value, cls, strict=False)
        except msgspec.ValidationError:
            return None
