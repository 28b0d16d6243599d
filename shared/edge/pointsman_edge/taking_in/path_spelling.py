"""Paths that say one thing to a proxy in front and another to the gateway."""

from typing import Final

from pointsman_core.refusal import Refusal

_HIDDEN: Final = (b"%2f", b"%5c")
"""A slash and a backslash that no rule about paths sees."""
_NAMES: Final = b"/v1/models/"
"""What is behind this is a model's name, which clients encode."""


def check_path(raw: bytes) -> None:
    """Raise Refusal for a path (as it was sent, without its query) that hides a slash."""
    if b"%" not in raw:
        return
    lower = raw.lower()
    if any(hidden in lower for hidden in _HIDDEN) and not raw.startswith(_NAMES):
        raise Refusal(400, "The path has an encoded slash; write `/` as it is.", code="invalid_path")
