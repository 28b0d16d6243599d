"""When an external provider isn't asked: while it asked for a pause, or mostly failed lately. Pure; times are seconds
of a clock that never goes back.

Selectors learn of both from the statistics of models; a model that a client asks for by name passes by no selector.
"""

from typing import Final

from pointsman_core.refusal import Refusal
from pointsman_providers.errors import explained, is_clients, standing_status

FAILURES: Final = 5
"""After this many failures in a row, the provider isn't asked for a while."""
OPEN_S: Final = 5.0
"""After this time one request is sent, to find out whether the provider answers again."""
RAMP_S: Final = 1.0
"""After a pause one request is sent, after each such time twice as many in all, until one is answered: those that
waited for the pause's end would come at once."""
_MOST: Final = 4096
"""Models of providers; the one without news for the longest time is dropped first."""
_LONGEST_RAMP: Final = 16
_REDIRECTS: Final = 300
_FAILED: Final = 500


class _Known:
    __slots__ = ("cuts", "failures", "paused_until", "sent", "status", "tried_at")

    def __init__(self) -> None:
        self.failures = 0
        """In a row, before an answer began."""
        self.cuts = 0
        """In a row, of answers that had begun."""
        self.tried_at = 0.0
        self.paused_until = 0.0
        self.sent = 0
        """Requests since the end of the pause."""
        self.status: int | None = None
        """Of the last failure, or of the answer that asked for the pause."""


class ProviderPauses:
    """By provider and its model."""

    def __init__(self) -> None:
        self._known: Final[dict[tuple[str, str], _Known]] = {}

    def refusal_for(self, provider: str, model: str, now: float) -> Refusal | None:
        """The error for the client if the provider isn't asked now; None if it is."""
        known = self._known.get((provider, model))
        if known is None:
            return None
        wait = known.paused_until - now
        if wait <= 0 and max(known.failures, known.cuts) >= FAILURES:
            wait = OPEN_S - (now - known.tried_at)
            if wait <= 0:
                known.tried_at = now
        elif wait <= 0 and known.paused_until:
            doublings = int(-wait / RAMP_S)
            wait = RAMP_S if doublings < _LONGEST_RAMP and known.sent >= 2**doublings else 0.0
            known.sent += not wait
        return explained(provider, standing_status(known.status), wait) if wait > 0 else None

    def record_answer(self, provider: str, model: str, status: int | None, pause_s: float | None, now: float) -> None:
        """Note the end of a request to the provider. `status`: of the answer, as `true_status` reads it; None without
        an answer. `pause_s`: the pause from now on that the provider asked for."""
        bad = status is None or not (status < _REDIRECTS or is_clients(status))
        known = self._news_of(provider, model, bad=bad)
        if known is None:
            return
        # A pause says when it answers again; without one, repeated refusals do.
        failed = bad and (not pause_s or status is None or status >= _FAILED)
        known.failures = known.failures + 1 if failed else 0
        known.tried_at = now
        if bad:
            known.status = status
        if pause_s and now + pause_s > known.paused_until:
            known.paused_until, known.sent = now + pause_s, 0
        if not (known.failures or known.cuts or bad or known.paused_until > now):
            del self._known[provider, model]

    def record_end(self, provider: str, model: str, *, cut_off: bool, now: float) -> None:
        """How an answer that had begun ended: broken off by the provider, or whole."""
        known = self._news_of(provider, model, bad=cut_off)
        if known is None:
            return
        known.cuts = known.cuts + 1 if cut_off else 0
        if cut_off:
            known.status, known.tried_at = None, now
        elif not known.failures and known.paused_until <= now:
            del self._known[provider, model]

    def _news_of(self, provider: str, model: str, *, bad: bool) -> _Known | None:
        """The entry, which moves to the end; a new one for bad news alone."""
        known = self._known.pop((provider, model), None)
        if known is None:
            if not bad:
                return None
            known = _Known()
            if len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
        self._known[provider, model] = known
        return known
