"""Open sessions, and how fast keys may be tried. Time is an argument, in seconds of a monotonic clock."""

import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from pointsman_console.domain.rights import Right, digest

MOST: Final = 1000
"""Sessions at once; the oldest ends when another one begins."""
BURST: Final = 20.0
"""Keys that may fail one after another."""
PER_S: Final = 0.5
"""Keys that may fail each second after that."""


@dataclass
class BrowserSession:
    """One browser that has shown a key."""

    right: Right
    key: str | None
    """Digest of the key; None for a session of the one-time token."""
    ends_at: float
    csrf: str
    """Every change must name it."""
    checked_at: float
    """When the key was last looked up."""


class Sessions:
    """Sessions by the hash of their cookie."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s: Final = lasts_s
        self._open: dict[str, BrowserSession] = {}

    def open_session(self, right: Right, key: str | None, now: float) -> tuple[str, BrowserSession]:
        """A new session and its cookie."""
        self._forget(now)
        while len(self._open) >= MOST:
            del self._open[next(iter(self._open))]
        cookie = secrets.token_urlsafe(32)
        session = BrowserSession(right, key, now + self._lasts_s, secrets.token_urlsafe(32), now)
        self._open[digest(cookie)] = session
        return cookie, session

    def find_session(self, cookie: str, now: float) -> BrowserSession | None:
        """The session of a cookie; None when there is none any more."""
        session = self._open.get(digest(cookie))
        return session if session is not None and session.ends_at > now else None

    def end_session(self, cookie: str) -> None:
        """Log out."""
        self._open.pop(digest(cookie), None)

    def is_alive(self, session: BrowserSession, now: float) -> bool:
        """Whether it hasn't ended."""
        return session.ends_at > now and any(each is session for each in self._open.values())

    def revoke_session(self, session: BrowserSession) -> None:
        """End a session whose key lost its right."""
        session.ends_at = float("-inf")

    def _forget(self, now: float) -> None:
        self._open = {name: session for name, session in self._open.items() if session.ends_at > now}


class OneTimeToken:
    """Opens one session, once."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def redeem_token(self, given: str) -> bool:
        """Whether it is the token; from then on no text is."""
        token = self._token
        if token is None or not hmac.compare_digest(digest(token), digest(given)):
            return False
        self._token = None
        return True


class Brake:
    """Failed logins over all: a bucket of tokens that refills."""

    def __init__(self) -> None:
        self._left = BURST
        self._at = float("-inf")

    def may_try(self, now: float) -> bool:
        """Whether a key may be tried now."""
        self._left = min(BURST, self._left + PER_S * max(0.0, min(now - self._at, 3600.0)))
        self._at = now
        return self._left >= 1.0

    def count_failure(self) -> None:
        """A key was wrong."""
        self._left = max(0.0, self._left - 1.0)
