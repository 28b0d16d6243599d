"""Sessions of agents, as events have them: ids, counts and reasons, nothing of a prompt."""

from collections.abc import Mapping
from typing import ClassVar

from pointsman_contracts.agent import Agent
from pointsman_contracts.events import RequestEvent
from pointsman_contracts.message import Address, JsonValue, Part, always


class RequestSession(Part, frozen=True, kw_only=True):
    """The session that a request belongs to."""

    id: str
    """As its client names it (`RequestFacts.session`): tenants may have sessions of one name."""
    agent: Agent | None = None
    """None where neither the program nor a parent session is known."""

    @classmethod
    def from_facts(cls, session: str, attributes: Mapping[str, JsonValue]) -> "RequestSession":
        return cls(id=session, agent=Agent.from_attributes(attributes) if attributes else None)


class SessionTurn(Part, frozen=True, kw_only=True):
    """One request as a turn of its session, as the scheduler that decided knows the session."""

    tenant: str = always("")
    number: int = always(1)
    """How many requests of the session this scheduler knows of, with this one."""
    continues: bool = always(False)
    """Whether the prompt goes on with that of an earlier turn. Otherwise the session is new to this scheduler, or the
    prompt is another one: a background request, or a conversation that was compacted."""
    gap_ms: float | None = None
    """From the end of the turn that it continues until this request came; None where it continues none, or one that
    hasn't ended."""
    last_worker: str | None = None
    """The engine of the turn that it continues; None where it continues none."""
    continued_tokens: int = always(0)
    """Prompt tokens that it has in common with an earlier turn, at least: an engine that kept them needn't compute
    them."""
    kept_for_ms: float | None = None
    """The time from the end of the last turn on for which its prefix was worth its place in the cache, as predicted
    then; None where nothing predicted it."""
    half_back_ms: float | None = None
    """The time within which half of the sessions were predicted to come back then; None where nothing predicted it, or
    most were predicted not to come back."""
    move: str = always("")
    """Why it goes to another engine than the last turn, in a word (`SessionMoved.reason`); empty where it doesn't."""
    why: str = always("")
    """Why the session stays with its engine, or leaves it, in a sentence."""


class SessionMoved(RequestEvent, frozen=True, kw_only=True):
    """A session's engine changed: a turn that continues an earlier one goes to another engine, or was answered by
    another one. Published by the scheduler that decided; for any reader."""

    address: ClassVar[Address] = Address("evt", "session", "moved", route=("pool",))

    edge: str
    pool: str
    session: RequestSession
    turn: int = always(1)
    """`SessionTurn.number`."""
    tenant: str = always("")
    model: str
    """The model that the client asked for."""
    last_worker: str
    worker: str
    """The engine that the session has from now on."""
    reason: str
    """`gone` (the engine left the pool, or restarted), `failed` (it didn't answer this request), `no-room` (its cache
    has no room), `filtered` (another filter removed it), `given` (a proxy chose among engines), `trial` (an ejected
    engine gets a request as a trial), `evicted` (it no longer held more of the prompt than the new one), `outscored`
    (the new one was predicted to be better in all)."""
    why: str = always("")
    continued_tokens: int = always(0)
    """As in `SessionTurn`."""
    cached_tokens: int = always(0)
    """Prompt tokens believed to be in the new engine's cache."""
    gap_ms: float | None = None
