"""How known agents name themselves, their sessions and their sub-agents in a request. One entry for each agent, with
its public source."""

from typing import Final, NamedTuple


class KnownAgent(NamedTuple):
    """The names that one agent, or the gateway before it, uses. Header names are lower-case."""

    name: str
    source: str
    """The public place that says so."""
    sessions: tuple[str, ...] = ()
    """Headers that name the session, the best one first."""
    fields: tuple[str, ...] = ()
    """Fields of the body that name it, as paths into objects."""
    subagents: tuple[str, ...] = ()
    """Headers that name a sub-agent within the session."""
    parents: tuple[str, ...] = ()
    """Headers that name the session, or the sub-agent, that began this one."""
    marks: tuple[tuple[str, str], ...] = ()
    """Headers by which the agent is recognised: a name, and a pattern of the value with `*` for any characters."""


KNOWN: Final = (
    KnownAgent(
        "claude-code",
        "code.claude.com/docs/en/llm-gateway-protocol",
        sessions=("x-claude-code-session-id",),
        fields=("metadata.user_id",),
        subagents=("x-claude-code-agent-id",),
        parents=("x-claude-code-parent-agent-id",),
        marks=(("x-claude-code-session-id", "*"), ("user-agent", "claude-cli/*")),
    ),
    KnownAgent(
        "codex",
        "openai/codex codex-rs/core/src/client.rs",
        # A thread is one conversation; a session may have several.
        sessions=("thread-id", "session_id", "session-id", "conversation_id"),
        fields=("prompt_cache_key",),
        subagents=("x-openai-subagent",),
        parents=("x-codex-parent-thread-id",),
        marks=(("originator", "codex*"), ("user-agent", "codex*"), ("x-codex-window-id", "*")),
    ),
    KnownAgent(
        "opencode",
        "sst/opencode packages/opencode/src/session/llm/request.ts",
        sessions=("x-session-affinity", "x-opencode-session"),
        parents=("x-parent-session-id",),
        marks=(("x-opencode-session", "*"), ("user-agent", "opencode/*")),
    ),
    KnownAgent(
        "cline",
        "cline/cline, the request headers of its own provider",
        sessions=("x-task-id",),
        marks=(("x-title", "cline"), ("user-agent", "cline/*")),
    ),
    KnownAgent(
        "roo-code",
        "RooCodeInc/Roo-Code, the request headers of its own provider",
        sessions=("x-roo-task-id",),
        marks=(("x-title", "roo code"), ("user-agent", "roocode/*")),
    ),
    KnownAgent(
        "litellm",
        "docs.litellm.ai/docs/proxy/ui_logs_sessions",
        sessions=("x-litellm-session-id",),
        fields=("litellm_session_id", "metadata.session_id"),
        marks=(("x-litellm-session-id", "*"), ("user-agent", "litellm/*")),
    ),
    KnownAgent(
        "langgraph",
        # LangGraph sends no id by itself: a program that wants one puts the thread's id into the request's metadata.
        "docs.langchain.com, configurable thread_id",
        fields=("metadata.thread_id",),
    ),
    KnownAgent(
        "dynamo",
        "docs.nvidia.com/dynamo, agents/session-ids",
        sessions=("x-dynamo-session-id",),
        parents=("x-dynamo-parent-session-id",),
        marks=(("x-dynamo-session-id", "*"),),
    ),
    KnownAgent(
        "grok",
        "docs.x.ai, prompt caching",
        sessions=("x-grok-conv-id",),
        marks=(("x-grok-conv-id", "*"),),
    ),
)

SESSION_HEADERS: Final = tuple(dict.fromkeys(name for agent in KNOWN for name in agent.sessions))
"""In this order: the first that a request has names its session."""
SESSION_FIELDS: Final = (
    *("prompt_cache_key", "litellm_session_id"),
    *("metadata.session_id", "metadata.thread_id", "metadata.user_id"),
)
SUBAGENT_HEADERS: Final = tuple(name for agent in KNOWN for name in agent.subagents)
PARENT_HEADERS: Final = tuple(name for agent in KNOWN for name in agent.parents)
MARKS: Final = {agent.name: dict(agent.marks) for agent in KNOWN if agent.marks}
"""Name of an agent → header → pattern of its value."""

_COMMON: Final = frozenset({"user-agent", "x-title", "originator"})
"""Headers that name an agent by their value alone: browsers and proxies send them too."""
MARKED_BY: Final = frozenset(
    (*SESSION_HEADERS, *(name for agent in KNOWN for name, _ in agent.marks if name not in _COMMON))
)
"""Headers that only a request with a session has."""
