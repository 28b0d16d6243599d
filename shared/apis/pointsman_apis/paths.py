"""Which requests the gateway takes, and the errors for those that it doesn't."""

import difflib
from typing import Final

from pointsman_apis import PATHS
from pointsman_apis.models import MODELS
from pointsman_core.refusal import Refusal

METHOD: Final = "POST"
_HIDDEN: Final = (b"%2f", b"%5c")
"""A slash and a backslash that rules about paths don't see."""
_NAMES: Final = b"/v1/models/"
"""A model's name follows, which clients encode."""


class WrongMethod(Refusal):
    """405 that lists the right methods, in words and in the header `Allow` (RFC 9110 §15.5.6)."""

    def __init__(self, method: str, path: str, allowed: str) -> None:
        """`path` is the gateway's own, never a client's; `allowed` are methods, separated by commas."""
        super().__init__(405, f"{method} is not allowed on {path}; use {allowed}.", code="method_not_allowed")
        self.allowed = allowed


def unknown_path(path: str) -> Refusal:
    """404 that lists the nearest paths and all others. It doesn't repeat the client's own: events have the message, and
    a path may hold anything."""
    known = (*PATHS, MODELS)
    near = difflib.get_close_matches(path[:100], known, n=2)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return Refusal(404, f"Unknown path.{hint} The paths here are {', '.join(known)}.", code="unknown_path")


def check_path(raw: bytes) -> None:
    """Raise Refusal for a path (as it was sent, without its query) that hides a slash."""
    if b"%" not in raw:
        return
    lower = raw.lower()
    if any(hidden in lower for hidden in _HIDDEN) and not raw.startswith(_NAMES):
        raise Refusal(400, "The path has an encoded slash; write `/` as it is.", code="invalid_path")
