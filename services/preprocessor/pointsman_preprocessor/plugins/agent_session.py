"""The session of an agent's request, from the header or the field by which the agent names it: `agent-session`."""

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
from pointsman_plugins.preprocessing import IDENTITY, Incoming, RequestProcessor
from pointsman_preprocessor.domain.request_headers import LONGEST_ID

HEADERS: Final = (
    "x-claude-code-session-id",  # code.claude.com/docs/en/llm-gateway-protocol
    # Codex: a thread is one conversation, a session may have several (openai/codex codex-rs/core/src/client.rs).
    "thread-id",
    "session_id",
    "session-id",
    "conversation_id",
    # OpenCode (sst/opencode packages/opencode/src/session/llm/request.ts)
    "x-session-affinity",
    "x-opencode-session",
    "x-task-id",  # Cline
    "x-roo-task-id",
    "x-litellm-session-id",  # docs.litellm.ai/docs/proxy/ui_logs_sessions
    "x-dynamo-session-id",  # docs.nvidia.com/dynamo, agents/session-ids
    "x-grok-conv-id",  # docs.x.ai, prompt caching
)
"""In this order: the first that a request has names its session."""
FIELDS: Final = ("prompt_cache_key", "litellm_session_id", "metadata.session_id", "metadata.user_id")
AGENT_HEADERS: Final = ("x-claude-code-agent-id", "x-openai-subagent")
"""A sub-agent's prompt doesn't go on with its parent's, so it is a session of its own."""
_USER: Final = "user_id"
_SESSION_OF_USER: Final = re.compile(r"_session_([0-9A-Za-z-]{8,})\Z")
"""Claude Code's older form: `user_<hash>_account_<id>_session_<id>`."""


class AgentSessionParams(Params):
    """Where to look, in this order: first the headers, then the fields of the body."""

    headers: list[str] = Field(default_factory=lambda: list(HEADERS))
    fields: list[str] = Field(default_factory=lambda: list(FIELDS))
    """Top-level fields, or paths into objects. Of `user_id`, only the session that Claude Code writes into it counts:
    a user isn't a session."""
    agent_headers: list[str] = Field(default_factory=lambda: list(AGENT_HEADERS))
    """Headers that name a sub-agent, which gets a session of its own."""
    cookies: tuple[str, ...] = ()
    """Cookies, after the fields. Their value may be a secret, so its hash names the session."""
    by_key: bool = False
    """Whether a request without any of them belongs to a session of its API key. Needs an authenticator before it."""


class AgentSession(RequestProcessor[AgentSessionParams]):
    """The session of a request without `x-session-id`, as coding agents and their gateways name it. A name that is too
    long or can't be printed is passed over. Put it before what reads sessions."""

    type_name = "agent-session"

    def setup(self) -> None:
        self._headers = [name.lower() for name in self.params.headers]
        self._agents = [name.lower() for name in self.params.agent_headers]
        self._fields = [tuple(path.split(".")) for path in self.params.fields]

    def process(self, incoming: Incoming) -> None:
        if incoming.headers.session is not None:
            return
        session, source = self._named(incoming)
        if session is None:
            return
        sent = incoming.envelope.headers
        agent = next((found for name in self._agents if (found := _identifier(sent.get(name))) is not None), None)
        session = session if agent is None else f"{session}/{agent}"[-LONGEST_ID:]
        incoming.headers = msgspec.structs.replace(incoming.headers, session=session)
        incoming.say(f"the session is the one of {source}")

    def _named(self, incoming: Incoming) -> tuple[str | None, str]:
        sent = incoming.envelope.headers
        for name in self._headers:
            if (found := _identifier(sent.get(name))) is not None:
                return found, name
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
