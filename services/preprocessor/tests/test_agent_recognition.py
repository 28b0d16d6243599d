"""Requests of known agents, in the forms that these agents send, without an entry in the configuration."""

import json
from collections.abc import Mapping

import pytest
from pydantic import JsonValue

from pointsman_apis.fields import NAME_SESSIONS
from pointsman_apis.requests import parse
from pointsman_contracts.agent import Agent
from pointsman_core.config import load
from pointsman_plugins.preprocessing import Incoming
from pointsman_preprocessor.configuration import compile_pipeline
from pointsman_preprocessor.domain.known_agents import KNOWN, SESSION_FIELDS
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_testing import builders
from pointsman_testing.agent_forms import SESSION, AgentForm, claude_code, codex


def recognised(
    headers: Mapping[str, str],
    fields: Mapping[str, JsonValue] | None = None,
    config: Mapping[str, object] | None = None,
    path: str = "/v1/completions",
) -> Incoming:
    envelope = builders.preprocess_request(path=path, headers=dict(headers), request_id="r-1")
    document = {"model": "m", "prompt": "hi", **(fields or {})}
    incoming = Incoming(envelope, parse(path, json.dumps(document).encode()), read_headers(envelope.headers))
    assert compile_pipeline(load(dict(config or {}))).run(incoming) is None
    return incoming


def agent_of(incoming: Incoming) -> Agent | None:
    return Agent.from_attributes(incoming.attributes)


@pytest.mark.parametrize(("form", "name"), [(claude_code("m"), "claude-code"), (codex("m"), "codex")])
def test_an_agents_own_request_has_its_session_and_its_name(form: AgentForm, name: str) -> None:
    incoming = recognised(form.headers, form.body, path=form.path.partition("?")[0])
    assert (incoming.headers.session, agent_of(incoming)) == (SESSION, Agent(name=name))


@pytest.mark.parametrize(
    ("headers", "fields", "session", "agent"),
    [
        # A sub-agent has a session of its own, which its parent's began.
        (
            {"x-claude-code-session-id": "c", "x-claude-code-agent-id": "a"}, {}, "c/a",
            Agent(name="claude-code", parent="c"),
        ),
        (
            {
                "x-claude-code-session-id": "c", "x-claude-code-agent-id": "b",
                "x-claude-code-parent-agent-id": "a",
            }, {}, "c/b", Agent(name="claude-code", parent="c/a"),
        ),
        (
            {"thread-id": "t", "x-codex-parent-thread-id": "p", "originator": "codex_cli_rs"}, {}, "t",
            Agent(name="codex", parent="p"),
        ),
        ({"session_id": "s", "x-openai-subagent": "review", "user-agent": "codex_cli_rs/1"}, {}, "s/review",
         Agent(name="codex", parent="s")),
        ({"x-session-affinity": "o", "x-parent-session-id": "p", "user-agent": "opencode/1.2"}, {}, "o",
         Agent(name="opencode", parent="p")),
        ({"x-dynamo-session-id": "d", "x-dynamo-parent-session-id": "e"}, {}, "d", Agent(name="dynamo", parent="e")),
        # Earlier versions send no header of the session.
        ({"user-agent": "claude-cli/2.0.1"}, {"metadata": {"user_id": "user_a_account__session_12345678"}}, "12345678",
         Agent(name="claude-code")),
        ({"x-title": "Roo Code", "x-roo-task-id": "r"}, {}, "r", Agent(name="roo-code")),
        # The client's own session stays, and the agent's name is known all the same.
        ({"x-session-id": "mine", "x-claude-code-session-id": "c"}, {}, "mine", Agent(name="claude-code")),
        # A session of a program that isn't known by name.
        ({}, {"prompt_cache_key": "p"}, "p", None),
        ({"session-id": "s"}, {}, "s", None),
        ({}, {"metadata": {"thread_id": "t"}}, "t", None),
        # Nothing names a session.
        ({"user-agent": "claude-cli/2.1"}, {}, None, None),
        ({"x-title": "Cline"}, {"metadata": {"tier": "gold"}}, None, None),
        ({"x-claude-code-session-id": " "}, {}, None, None),
    ],
)  # fmt: skip
def test_sessions_agents_and_their_parents_are_known_without_configuration(
    headers: dict[str, str], fields: dict[str, JsonValue], session: str | None, agent: Agent | None
) -> None:
    incoming = recognised(headers, fields)
    assert (incoming.headers.session, agent_of(incoming)) == (session, agent)


def test_an_entry_of_the_configuration_takes_the_place_of_the_known_agents() -> None:
    entry = {"use": "agent-session", "headers": ["x-run"], "agents": {"runner": {"User-Agent": "Runner/*"}}}
    config = {"preprocessing": [entry]}
    headers = {"x-run": "r", "user-agent": "runner/2"}
    incoming = recognised(headers, config=config)
    assert (incoming.headers.session, agent_of(incoming)) == ("r", Agent(name="runner"))
    known = recognised({"x-claude-code-session-id": "c"}, config=config)
    assert (known.headers.session, agent_of(known)) == (None, None)
    off = {"preprocessing": [{"use": "agent-session", "mode": "off"}]}
    assert recognised({"x-claude-code-session-id": "c"}, config=off).headers.session is None


def test_requests_without_such_headers_and_fields_arent_looked_at() -> None:
    incoming = recognised({"user-agent": "OpenAI/Python 2.1", "x-title": "Cline"}, {"temperature": 1})
    assert not incoming.headers.names_agent
    assert not incoming.body.may_name_session
    assert not incoming.attributes


def test_the_parser_of_bodies_knows_the_fields_of_sessions() -> None:
    assert {path.partition(".")[0] for path in SESSION_FIELDS} == NAME_SESSIONS


def test_every_known_agent_has_a_source() -> None:
    assert len({agent.name for agent in KNOWN}) == len(KNOWN)
    assert all("." in agent.source or "/" in agent.source for agent in KNOWN)
