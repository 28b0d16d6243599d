"""The ASGI application around all others: no answer without a session, except the login page and what it is made of.

Every answer carries the headers that keep a browser from loading, framing or guessing anything else.
"""

import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import quote, urlsplit

from pointsman_console.adapters.keys import KeyBook, KeysUnreachable
from pointsman_console.domain.rights import right_of
from pointsman_console.domain.sessions import BrowserSession, Sessions

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE: Final = "pointsman_console"
CSRF: Final = b"x-csrf-token"
LOGIN: Final = "/login"
DRAIN: Final = "/api/engines/drain"
DRY_RUN: Final = "/api/dry-run"
"""Both are called by programs, with a key in the header `authorization` and without a session."""
PUBLIC: Final = (LOGIN, "/api/login", "/favicon.ico", DRAIN, DRY_RUN)
STATIC: Final = "/static/"
CHECKED_EVERY_S: Final = 5.0
"""A session's key is looked up again after this time: a revoked key sees nothing more."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class Door:
    """Lets requests with a session through, with the session in `scope["session"]`."""

    def __init__(
        self,
        app: App,
        sessions: Sessions,
        keys: KeyBook,
        *,
        https: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app: Final = app
        self._sessions: Final = sessions
        self._keys: Final = keys
        self._https: Final = https
        self._clock: Final = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return None
        path: str = scope["path"]
        public = path in PUBLIC or path.startswith(STATIC)

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                cache = b"no-cache" if path.startswith(STATIC) else b"no-store"
                own = [*HEADERS, (b"cache-control", cache)]
                if self._https:
                    own.append((b"strict-transport-security", b"max-age=31536000"))
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        if foreign(scope):
            return await _refuse(sent, 403, "This request comes from another site; open the console itself.")
        if public:
            return await self._app(scope, receive, sent)
        try:
            session = await self.find_session(scope)
        except KeysUnreachable as error:
            return await _refuse(sent, 503, f"API keys can't be checked now: {error}.")
        if session is None:
            if path.startswith("/api/"):
                return await _refuse(sent, 401, "Log in with a key.")
            return await _redirect(sent, scope)
        if scope["method"] not in ("GET", "HEAD") and _header(scope, CSRF) != session.csrf:
            return await _refuse(sent, 403, "The header x-csrf-token isn't the one of this session; reload the page.")
        scope["session"] = session
        return await self._app(scope, receive, sent)

    async def find_session(self, scope: Scope) -> BrowserSession | None:
        """The session of a request whose key still has its right. Raises KeysUnreachable."""
        cookie = cookie_of(scope)
        session = self._sessions.find_session(cookie, self._clock()) if cookie else None
        return session if session is not None and await self.is_session_valid(session) else None

    async def is_session_valid(self, session: BrowserSession) -> bool:
        """Whether a session may go on: it hasn't ended, and its key has its right. Raises KeysUnreachable."""
        now = self._clock()
        if not self._sessions.is_alive(session, now):
            return False
        if session.key is None or now - session.checked_at < CHECKED_EVERY_S:
            return True
        record = await self._keys.find_key(session.key)
        right = None if record is None else right_of(record, time.time_ns() // 1_000_000)
        if right is None:
            self._sessions.revoke_session(session)
            return False
        session.right = right
        session.checked_at = now
        return True


def cookie_of(scope: Scope) -> str:
    """The session's cookie; empty without one."""
    try:
        found = SimpleCookie(_header(scope, b"cookie")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def foreign(scope: Scope) -> bool:
    """Whether a browser says that a change was asked for by a page of another origin."""
    if scope["method"] in ("GET", "HEAD"):
        return False
    origin = _header(scope, b"origin")
    return bool(origin) and urlsplit(origin).netloc != _header(scope, b"host")


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def _refuse(send: Send, status: int, words: str) -> None:
    body = json.dumps({"error": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _redirect(send: Send, scope: Scope) -> None:
    query = scope["query_string"].decode("latin-1")
    wanted = quote(scope["path"] + (f"?{query}" if query else ""), safe="/")
    where = LOGIN if wanted == "/" else f"{LOGIN}?next={wanted}"
    headers = [(b"location", where.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
