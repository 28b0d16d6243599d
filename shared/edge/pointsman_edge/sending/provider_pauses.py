"""When an external provider isn't asked: while it asked for a pause, or mostly failed lately. Pure; times are seconds
of a clock that never goes back.

Selectors learn of both from the statistics of models; a model that a client asks for by name passes by no selector.
"""

from typing import Final

from pointsman_core.refusal import Refusal
from pointsman_providers.errors import explained

FAILURES: Final = 5
"""After this many failures in a row, the provider isn't asked for a while."""
OPEN_S: Final = 5.0
"""After this time one request is sent, to find out whether the provider answers again."""
_MOST: Final = 4096
"""Models of providers; the one without news for the longest time is dropped first."""
_FAILED: Final = 500
_LIMITED: Final = 429


class _Known:
    __slots__ = ("failures", "paused_until", "status", "tried_at")

    def __init__(self) -> None:
        self.failures = 0
        self.tried_at = 0.0
        self.paused_until = 0.0
        self.status = _LIMITED
        """That asked for the pause."""


class ProviderPauses:
    """By provider and its model."""

    def __init__(self) -> None:
        self._known: Final[dict[tuple[str, str], _Known]] = {}

    def refusal_for(self, provider: str, model: str, now: float) -> Refusal | None:
        """The error for the client if the provider isn't asked now; None if it is."""
        known = self._known.get((provider, model))
        if known is None:
            return None
        if known.paused_until > now:
            return explained(provider, known.status, b"", known.paused_until - now)
        if known.failures < FAILURES:
            return None
        if now - known.tried_at < OPEN_S:
            return explained(provider, 503, b"", OPEN_S - (now - known.tried_at))
        known.tried_at = now
        return None

    def record_answer(self, provider: str, model: str, status: int | None, pause_s: float | None, now: float) -> None:
        """How a request to it ended: with this status, or without an answer. `pause_s`: the pause from now
        on that the provider asked for."""
        failed = status is None or status >= _FAILED
        known = self._known.pop((provider, model), None)
        if known is None:
            if not failed and not pause_s:
                return
            known = _Known()
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
        known.failures = known.failures + 1 if failed else 0
        known.tried_at = now
        if pause_s:
            known.paused_until = max(known.paused_until, now + pause_s)
            known.status = _LIMITED if status == _LIMITED else 503
        if known.failures or known.paused_until > now:
            self._known[provider, model] = known
