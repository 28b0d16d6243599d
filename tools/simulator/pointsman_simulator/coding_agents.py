"""A closed loop of coding agents: long growing prompts, short answers, gaps of tools and of people, sub-agents.

The figures are medians and tails that public traces report: tokens and steps of sessions of Claude Code and Codex, and
the times between steps. A pair is a lognormal: its median, and the standard deviation of its logarithm, which follows
from a published mean or percentile. The simulator's README names the sources.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pointsman_simulator.trace import TraceRequest
from pointsman_simulator.workshop import TOKENS_PER_SECOND, Workshop


class _Agent(NamedTuple):
    system_tokens: int
    """Tools and system prompt, the same in every session of one version."""
    first_tokens: int
    """Median of what the first request adds: instructions of the repository, and the task."""
    window: int
    """A prompt that would be longer begins anew from a summary."""


_CLAUDE: Final = _Agent(system_tokens=21_000, first_tokens=11_000, window=200_000)
_CODEX: Final = _Agent(system_tokens=7_000, first_tokens=2_300, window=258_000)
_SUB_AGENT_TOKENS: Final = 13_200
"""Tools and system prompt of a sub-agent, which doesn't get its parent's context."""
_SUMMARY_TOKENS: Final = 9_000
_VERSIONS: Final = 4
"""Versions of each agent that are in use, by Zipf's law."""
_USER_REQUESTS: Final = 6.0
"""Mean of a session."""
_SUB_AGENTS: Final = 0.012
"""Chance of a step to start sub-agents; one to four of them run at a time."""
_STEPS_OF_SUB_AGENT: Final = (7, 1.55)
_STEPS: Final = (2.5, 1.6)
"""The steps of one user request: median and spread."""
_FRESH: Final = (251, 1.77)
"""Tokens that a step adds besides the last answer."""
_ANSWER: Final = (214, 1.34)
_TOOL_S: Final = (0.3, 2.97)
_CLIENT_S: Final = 0.55
"""Between a tool's end and the next request."""
_PERSON_S: Final = (86, 2.08)
_LONGEST_S: Final = 3600.0
_BEFORE_MS: Final = 3_600_000.0
"""Sessions that began this long before the span still go on in it."""


@dataclass(slots=True)
class _Step:
    at: float
    output_tokens: int
    after: tuple["_Step", ...]
    request: TraceRequest | None
    """None outside the span."""

    @property
    def ends(self) -> float:
        return self.at + self.output_tokens / TOKENS_PER_SECOND * 1000


class _Session:
    """Writes the steps of one session. Times are estimates, by which requests are sorted: the loop makes its own."""

    def __init__(self, shop: Workshop, name: str, agent: _Agent, system: int, sub_system: int) -> None:
        self._shop = shop
        self._name = name
        self._agent = agent
        self._system = system
        self._sub_system = sub_system
        self.steps: list[_Step] = []
        """Those inside the span."""

    def run(self, at: float) -> None:
        """All steps of the session, which begins at `at`."""
        shop, agent = self._shop, self._agent
        own = shop.new_text()
        context = agent.system_tokens + shop.draw_length(agent.first_tokens, 0.6)
        before: tuple[_Step, ...] = ()
        gap_ms = 0.0
        for turn in range(1 + int(shop.random.expovariate(1 / (_USER_REQUESTS - 1)))):
            if turn:
                gap_ms = self._seconds(*_PERSON_S) * 1000
            for _ in range(shop.draw_length(*_STEPS)):
                if context + 4_000 > agent.window:
                    own, context = shop.new_text(), agent.system_tokens + _SUMMARY_TOKENS
                step = self._step((self._system, agent.system_tokens), own, context, after=before, gap_ms=gap_ms, at=at)
                context += step.output_tokens + shop.draw_length(*_FRESH, 60_000)
                before = (step,)
                at = step.ends
                gap_ms = (_CLIENT_S + self._seconds(*_TOOL_S)) * 1000
                if shop.random.random() < _SUB_AGENTS:
                    before = self._sub_agents(step)
                    at = max(each.ends for each in before)

    def _sub_agents(self, parent: _Step) -> tuple[_Step, ...]:
        """Runs of sub-agents side by side; the parent goes on after the last of them. Returns their last steps."""
        shop = self._shop
        return tuple(self._sub_agent(parent) for _ in range(shop.random.randint(1, 4)))

    def _sub_agent(self, parent: _Step) -> _Step:
        shop = self._shop
        own, context = shop.new_text(), _SUB_AGENT_TOKENS + shop.draw_length(400, 0.8)
        last = parent
        for _ in range(min(shop.draw_length(*_STEPS_OF_SUB_AGENT), 200)):
            gap_ms = (_CLIENT_S + self._seconds(*_TOOL_S)) * 1000 if last is not parent else _CLIENT_S * 1000
            last = self._step(
                (self._sub_system, _SUB_AGENT_TOKENS), own, context, after=(last,), gap_ms=gap_ms, at=last.ends
            )
            context += last.output_tokens + shop.draw_length(*_FRESH, 20_000)
        return last

    def _step(
        self, shared: tuple[int, int], own: int, context: int, after: tuple[_Step, ...], gap_ms: float, at: float
    ) -> _Step:
        shop = self._shop
        step = _Step(at + gap_ms, shop.draw_length(*_ANSWER, 32_000), after, None)
        if shop.is_inside(step.at):
            request = shop.make_request(step.at, shared, own, context, step.output_tokens)
            step.request = replace(request, session=self._name, gap_ms=gap_ms)
            self.steps.append(step)
        return step

    def _seconds(self, median: float, spread: float) -> float:
        return min(_LONGEST_S, self._shop.random.lognormvariate(0.0, spread) * median)


def coding_agents(shop: Workshop) -> list[TraceRequest]:
    """Sessions of two agents that begin at any time of the span, and before it, so that it begins in the middle of
    things: what falls outside is left out."""
    agents = (_CLAUDE, _CODEX)
    systems = {agent: [shop.new_text() for _ in range(_VERSIONS)] for agent in agents}
    sub_systems = [shop.new_text() for _ in range(_VERSIONS)]
    steps: list[_Step] = []
    number = 0
    while len(steps) < shop.count:
        agent, version = shop.random.choice(agents), shop.draw_zipf(_VERSIONS)
        session = _Session(shop, f"session-{number}", agent, systems[agent][version], sub_systems[version])
        session.run(shop.any_time(before=_BEFORE_MS))
        steps += session.steps
        number += 1
    steps.sort(key=lambda step: step.at)
    places = {id(step): place for place, step in enumerate(steps)}
    return [
        replace(step.request, after=tuple(places[id(before)] for before in step.after if id(before) in places))
        for step in steps[: shop.count]
        if step.request is not None
    ]
