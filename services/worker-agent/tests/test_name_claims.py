"""Of several agents of one name one speaks, and which one doesn't change while it lives."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman_contracts.worker import WorkerClaim
from pointsman_worker_agent.domain.name_claims import NameClaims, Rival

STEP_S = 0.1


@dataclass
class Agent:
    name: str
    url: str
    boot_id: str = "b"
    leaving: bool = False
    began: float = 0.0
    claims: NameClaims = field(init=False)
    yields_to: Rival | None = None

    def __post_init__(self) -> None:
        self.claims = NameClaims("p", "w", agent=self.name, url=self.url)


def run(agents: list[Agent], now: float, until: float) -> float:
    """Every agent's turns, with claims that reach all of them at once."""
    while now < until:
        running = [agent for agent in agents if now >= agent.began]
        said: list[WorkerClaim] = []
        for agent in running:
            agent.yields_to = agent.claims.find_speaker(now, leaving=agent.leaving)
            if agent.yields_to is None:
                agent.claims.start_speaking(now)
            if agent.claims.due(now):
                said.append(agent.claims.make_claim(now, agent.boot_id, leaving=agent.leaving))
        for claim in said:
            for agent in running:
                agent.claims.receive_claim(claim, agent.boot_id, now)
        now += STEP_S
    return now


def speaking(agents: list[Agent]) -> list[str]:
    return [agent.name for agent in agents if agent.yields_to is None]


@settings(max_examples=100, deadline=None)
@given(starts=st.lists(st.integers(0, 60), min_size=1, max_size=5))
def test_of_agents_before_different_engines_exactly_one_speaks_and_the_first_one_goes_on(starts: list[int]) -> None:
    agents = [Agent(f"a{9 - n}", f"http://e{n}", began=start / 10) for n, start in enumerate(starts)]
    now = run(agents, 0.0, 12.0)
    (speaker,) = speaking(agents)
    first = min(starts)
    assert next(agent for agent in agents if agent.name == speaker).began <= first / 10 + 1.2
    late = Agent("a0", "http://late", began=now)
    now = run([*agents, late], now, now + 8.0)
    assert speaking([*agents, late]) == [speaker]
    winner = next(agent for agent in agents if agent.name == speaker)
    assert len(winner.claims.find_rivals(now)) == len(agents)


def test_another_one_speaks_when_the_first_one_leaves_or_is_gone() -> None:
    first, second, third = Agent("a", "http://1"), Agent("b", "http://2", began=3.0), Agent("c", "http://3", began=9.0)
    now = run([first, second, third], 0.0, 15.0)
    assert speaking([first, second, third]) == ["a"]
    first.leaving = True
    now = run([first, second, third], now, now + 8.0)
    assert len(speaking([second, third])) == 1
    gone = speaking([second, third])[0]
    left = [agent for agent in (second, third) if agent.name != gone]
    run(left, now, now + 5.0)
    assert speaking(left) == [left[0].name]
    assert not left[0].claims.find_rivals(now + 5.0)


def test_an_agent_that_follows_another_before_the_same_engine_is_no_rival() -> None:
    old, new = Agent("a", "http://1"), Agent("b", "http://1", began=4.0)
    now = run([old, new], 0.0, 4.5)
    old.boot_id = "b2"  # it learns of a restart a moment earlier
    now = run([old, new], now, now + 0.3)
    new.boot_id = "b2"
    run([old, new], now, now + 5.0)
    assert speaking([old, new]) == ["a", "b"]


def test_agents_that_name_one_address_and_see_different_engines_there_are_rivals() -> None:
    one = Agent("a", "http://127.0.0.1:8000", boot_id="b1")
    other = Agent("b", "http://127.0.0.1:8000", boot_id="b2", began=2.0)
    run([one, other], 0.0, 9.0)
    assert speaking([one, other]) == ["a"]
