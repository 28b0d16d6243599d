"""Which of several agents of one name speaks for the worker. Pure; times are of any monotonic clock."""

from dataclasses import dataclass
from typing import Final

from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerClaim

TOGETHER_S: Final = 0.1
"""Two agents that began within this time began together: the order of their own names decides."""
INSISTS: Final = 3
"""Claims of a rival that speaks on although it should be silent, as seen from here. At the edge of `TOGETHER_S` each
may see it so; the order of names decides then, too."""
ANSWER_GAP_S: Final = 0.2
"""Shortest time between two claims."""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another agent of this name, before another engine."""

    agent: str
    url: str


@dataclass(slots=True)
class _Heard:
    claim: WorkerClaim
    at: float
    differs: bool
    """Whether its engine is another one than ours."""
    since: float | None
    """Since when it has spoken; None when it doesn't."""
    insists: int
    """Its claims in a row while both spoke."""


class NameClaims:
    """The claims to one name, as the agent `agent` before the engine at `url` hears them."""

    def __init__(self, pool: str, worker: str, *, agent: str, url: str) -> None:
        self._pool: Final = pool
        self._worker: Final = worker
        self._agent: Final = agent
        self._url: Final = url
        self._others: dict[str, _Heard] = {}
        self._since: float | None = None
        self._due = True
        self._claimed_at = float("-inf")

    def receive_claim(self, claim: WorkerClaim, boot_id: str, now: float) -> None:
        """Take a claim; the agent's own is ignored. `boot_id`: of the agent's own engine, empty while unknown."""
        if claim.agent == self._agent:
            return
        before = self._others.get(claim.agent)
        # An agent that follows another before one engine may learn of a restart a moment earlier or later.
        other_life = bool(boot_id and claim.boot_id and boot_id != claim.boot_id)
        repeated = before is not None and before.claim.boot_id == claim.boot_id
        differs = claim.url != self._url or (other_life and repeated)
        since = now - claim.spoken_ms / 1000 if claim.spoken_ms else None
        insists = before.insists + 1 if before is not None and since is not None and self._since is not None else 0
        self._others[claim.agent] = _Heard(claim, now, differs, since, insists)
        if differs and not claim.leaving and (before is None or before.claim.leaving):
            self._due = True

    def find_rivals(self, now: float) -> list[Rival]:
        """Agents of this name before other engines, those that leave excepted."""
        within = TIMES.announced_within_s
        self._others = {name: each for name, each in self._others.items() if now - each.at <= within}
        return [
            Rival(name, each.claim.url)
            for name, each in sorted(self._others.items())
            if each.differs and not each.claim.leaving
        ]

    def find_speaker(self, now: float, *, leaving: bool) -> Rival | None:
        """The agent that speaks in place of this one; None when this one does."""
        for rival in self.find_rivals(now):
            if leaving or self._yields(self._others[rival.agent]):
                self._since = None
                return rival
        return None

    def _yields(self, other: _Heard) -> bool:
        if other.since is None:
            return False  # it may never speak, e.g. because its engine never answers
        if self._since is None:
            return True
        if abs(other.since - self._since) <= TOGETHER_S or other.insists >= INSISTS:
            return other.claim.agent < self._agent
        return other.since < self._since

    def start_speaking(self, now: float) -> None:
        """This agent speaks for the worker now."""
        if self._since is None:
            self._since = now

    def due(self, now: float) -> bool:
        gap = now - self._claimed_at
        return gap >= TIMES.announce_s or (self._due and gap >= ANSWER_GAP_S)

    def make_claim(self, now: float, boot_id: str, *, leaving: bool) -> WorkerClaim:
        """The claim to publish now."""
        self._due, self._claimed_at = False, now
        return WorkerClaim(
            worker=self._worker,
            pool=self._pool,
            agent=self._agent,
            url=self._url,
            boot_id=boot_id,
            spoken_ms=self._spoken_ms(now),
            leaving=leaving,
        )

    def _spoken_ms(self, now: float) -> int:
        return 0 if self._since is None else 1 + round((now - self._since) * 1000)
