"""The session of an agent's request, from the header or the field by which the agent names it: `agent-session`."""

import fnmatch
import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from typing import Final, cast

import msgspec
import orjson
from pydantic import Field, JsonValue

from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import AGENT, IDENTITY, Incoming, RequestProcessor
from pointsman_preprocessor.domain.known_agents import (
    MARKS,
    PARENT_HEADERS,
    SESSION_FIELDS,
    SESSION_HEADERS,
    SUBAGENT_HEADERS,
)
from pointsman_preprocessor.domain.request_headers import LONGEST_ID

_USER: Final = "user_id"
_SESSION_OF_USER: Final = re.compile(r"_session_([0-9A-Za-z-]{8,})\Z")
"""Claude Code's older form: `user_<hash>_account_<id>_session_<id>`."""
_SIBLING_PARENTS: Final = frozenset({"x-claude-code-parent-agent-id"})
"""Headers that name another sub-agent of the same session; the others name a whole session."""


class AgentSessionParams(Params):
    """Where to look, in this order: first the headers, then the fields of the body."""

    headers: list[str] = Field(default_factory=lambda: list(SESSION_HEADERS))
    fields: list[str] = Field(default_factory=lambda: list(SESSION_FIELDS))
    """Top-level fields, or paths into objects. Of `user_id`, only the session that Claude Code writes into it counts:
    a user isn't a session."""
    agent_headers: list[str] = Field(default_factory=lambda: list(SUBAGENT_HEADERS))
    """Headers that name a sub-agent, which gets a session of its own."""
    parent_headers: list[str] = Field(default_factory=lambda: list(PARENT_HEADERS))
    """Headers that name the session that began this one."""
    agents: dict[str, dict[str, str]] = Field(
        default_factory=lambda: {name: dict(each) for name, each in MARKS.items()}
    )
    """Name of an agent → header → pattern of its value, with `*` for any characters and in any case: one of the
    headers is enough, and the first agent counts. These names are labels of metrics."""
    cookies: tuple[str, ...] = ()
    """Cookies, after the fields. Their value may be a secret, so its hash names the session."""
    by_key: bool = False
    """Whether a request without any of them belongs to a session of its API key. Needs an authenticator before it."""


class AgentSession(RequestProcessor[AgentSessionParams]):
    """The session of a request without `x-session-id`, as coding agents and their gateways name it, and the agent's
    name. A name that is too long or can't be printed is passed over. Without an entry in `preprocessing` it runs, with
    these defaults, for requests that have one of these headers or fields; `mode: off` of an entry turns that off."""

    type_name = "agent-session"
    produces = (AGENT,)

    def setup(self) -> None:
        self._headers = [name.lower() for name in self.params.headers]
        self._agents = [name.lower() for name in self.params.agent_headers]
        self._parents = [name.lower() for name in self.params.parent_headers]
        self._fields = [tuple(path.split(".")) for path in self.params.fields]
        self._marks = [
            (name, header.lower(), re.compile(fnmatch.translate(pattern.lower())).fullmatch)
            for name, marks in self.params.agents.items()
            for header, pattern in marks.items()
        ]

    def process(self, incoming: Incoming) -> None:
        session, source = incoming.headers.session, ""
        sent = incoming.envelope.headers
        parent = self._first(self._parents, sent)
        if session is None:
            session, source = self._named(incoming)
            if session is not None:
                whole, (subagent, _) = session, self._first(self._agents, sent)
                if subagent is not None:
                    session = _within(whole, subagent)
                parent = self._parent(whole, subagent, parent)
                incoming.headers = msgspec.structs.replace(incoming.headers, session=session)
                incoming.say(f"the session is the one of {source}")
        name = self._name(sent)
        if session is None or (name is None and parent[0] is None):
            return
        agent: dict[str, JsonValue] = {} if name is None else {"name": name}
        if parent[0] is not None and parent[0] != session:
            agent["parent"] = parent[0]
        incoming.write(AGENT, agent)

    def _name(self, sent: Mapping[str, str]) -> str | None:
        for name, header, matches in self._marks:
            value = sent.get(header)
            if value is not None and matches(value.strip().lower()) is not None:
                return name
        return None

    def _parent(self, whole: str, subagent: str | None, given: tuple[str | None, str]) -> tuple[str | None, str]:
        """The session that began this one: the one that a header names, else the whole one of a sub-agent."""
        name, header = given
        if name is None:
            return (None if subagent is None else whole), ""
        return (_within(whole, name) if header in _SIBLING_PARENTS else name), header

    @staticmethod
    def _first(names: list[str], sent: Mapping[str, str]) -> tuple[str | None, str]:
        """The first of these headers that names something, and the header."""
        for name in names:
            if (found := _identifier(sent.get(name))) is not None:
                return found, name
        return None, ""

    def _named(self, incoming: Incoming) -> tuple[str | None, str]:
        sent = incoming.envelope.headers
        found, header = self._first(self._headers, sent)
        if found is not None:
            return found, header
        for path in self._fields:
            value = incoming.field(path[0])
            for step in path[1:]:
                value = value.get(step) if isinstance(value, dict) else None
            text = _session_of_user(value) if path[-1] == _USER else value
            if (found := _identifier(text)) is not None:
                return found, ".".join(path)
        if self.params.cookies:
            cookies = SimpleCookie()
            with suppress(CookieError):
                cookies.load(sent.get("cookie", ""))
            for name in self.params.cookies:
                if name in cookies and cookies[name].value:
                    value = f"{name}={cookies[name].value}"
                    return f"cookie-{_hash(value)}", f"the cookie {name}"
        if self.params.by_key:
            identity = incoming.read(IDENTITY) or {}
            if identity.get("key"):
                owner = f"{identity.get('tenant')}/{identity['key']}"
                return f"key-{_hash(owner)}", "the API key"
        return None, ""


def _within(session: str, subagent: str) -> str:
    return f"{session}/{subagent}"[-LONGEST_ID:]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _identifier(value: JsonValue) -> str | None:
    if isinstance(value, str) and value.strip() and len(value) <= LONGEST_ID and value.isprintable():
        return value
    return None


def _session_of_user(value: JsonValue) -> JsonValue:
    """The session in Claude Code's `metadata.user_id`: the end of a name, or a member of an object written as text."""
    if not isinstance(value, str):
        return None
    if found := _SESSION_OF_USER.search(value):
        return found[1]
    try:
        written: object = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    return cast("Mapping[str, JsonValue]", written).get("session_id") if isinstance(written, dict) else None
