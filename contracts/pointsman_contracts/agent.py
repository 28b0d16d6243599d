"""The program that a request comes from, as far as every service may know it."""

from collections.abc import Mapping
from typing import Final, Self

from pointsman_contracts.message import JsonValue, Part, always

AGENT: Final = "agent"
"""The attribute of a request (`RequestFacts.attributes`) that names the program that sent it, e.g. a coding agent.
Absent where no known header or field names one.

`name`: one of the names that the configuration has. `parent`: the session that began this one; absent for a session
that no other began."""
OTHER: Final = "other"
"""Stands in metrics for requests of a session whose agent isn't known."""


class Agent(Part, frozen=True, kw_only=True):
    """A program, and the place of the request's session in its work."""

    name: str = always(OTHER)
    parent: str | None = None
    """The session that began this one, e.g. that of the agent whose sub-agent sends the request."""

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, JsonValue]) -> Self | None:
        """From `RequestFacts.attributes`; None where nothing names an agent."""
        facts = attributes.get(AGENT)
        if not isinstance(facts, dict):
            return None
        name, parent = facts.get("name"), facts.get("parent")
        return cls(
            name=name if isinstance(name, str) and name else OTHER,
            parent=parent if isinstance(parent, str) else None,
        )


def find_program(session: str | None, attributes: Mapping[str, JsonValue]) -> str:
    """The session that a request's work began with: the one that began its session, else its own; empty without one."""
    if session is None:
        return ""
    agent = Agent.from_attributes(attributes)
    return (None if agent is None else agent.parent) or session
