"""Finds engines that ignore the data-parallel rank of a request: one sent to a rank runs at another rank. Pure.

Two things show it. The prompt of an answered request is reported in the KV cache of another rank, and not in that of
its own. And a load report shows fewer requests at one rank than were sent there, and more at another one: requests from
elsewhere only add to a report, and requests that an engine hides only take away from it.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from pointsman_plugins.scheduling.worker import HoldKey, Worker
from pointsman_scheduler.domain.outlier_detection import WorkerJudgement
from pointsman_scheduler.domain.pool import PoolScheduler

SAMPLES: Final = 20
"""Signs of one kind that are remembered of each engine."""
CROSSED: Final = 0.25
"""Share of them that must speak of another rank. Of two ranks, an engine that ignores the header chooses the right one
in a half of the cases."""
FOLLOWED: Final = 4
"""Requests of one rank whose prompts are looked for at a time."""
REPORTED_S: Final = 3.0
"""Time after a request by which its engine has reported the prompt."""

UNHEEDED: Final = "unheeded"


class _Followed(NamedTuple):
    """A request whose answer has begun."""

    worker: Worker
    block: int
    """The last one of its prompt, which stands for all of it."""
    seen: float
    """When it was on the books last."""


class _Signs:
    """The signs of one engine: empty where a rank did as it was asked, words where another one did."""

    def __init__(self) -> None:
        self.load: Final[deque[str]] = deque(maxlen=SAMPLES)
        self.cache: Final[deque[str]] = deque(maxlen=SAMPLES)

    def judge(self) -> str:
        """Why the engine ignores the rank, in words; empty while that isn't known."""
        for signs in (self.cache, self.load):
            crossed = [words for words in signs if words]
            if len(signs) == SAMPLES and len(crossed) >= CROSSED * SAMPLES:
                return (
                    f"requests that name one rank run at another, by {len(crossed)} of {SAMPLES} signs: {crossed[-1]}"
                )
        return ""


class RankHeeding:
    """Watches the engines of one pool that have several ranks. Call `compare` about twice a second."""

    def __init__(self) -> None:
        self._engines: dict[tuple[str, str], _Signs] = {}
        """By name and life."""
        self._followed: Final[dict[HoldKey, _Followed]] = {}

    def compare(self, pool: PoolScheduler, now: float) -> bool:
        """Compare what was sent to each rank with what its engine reports. False where no engine has several ranks."""
        engines: dict[tuple[str, str], list[Worker]] = {}
        for worker in pool.fleet.present:
            own = worker.registration
            if own.server is not None and own.rank is not None:
                engines.setdefault((own.server, own.boot_id), []).append(worker)
        self._engines = {key: self._engines.get(key) or _Signs() for key, ranks in engines.items() if len(ranks) > 1}
        for key, signs in self._engines.items():
            if any(_sent(rank) for rank in engines[key]):
                signs.load.append(_crossed(engines[key]))
            for rank in engines[key]:
                self._follow(rank, now)
        for key in [key for key, each in self._followed.items() if now - each.seen > REPORTED_S]:
            self._look_for_prompt(self._followed.pop(key), engines, pool)
        return bool(self._engines)

    def judge(self, worker: Worker) -> WorkerJudgement | None:
        """The judgement on a worker whose engine ignores the rank; None for any other one."""
        own = worker.registration
        signs = self._engines.get((own.server or "", own.boot_id))
        why = "" if signs is None else signs.judge()
        return WorkerJudgement(worker, UNHEEDED, why) if why else None

    def _follow(self, rank: Worker, now: float) -> None:
        if not rank.tells:
            return
        left = FOLLOWED
        for key, hold in rank.holds.items():
            change = hold.change
            # One whose answer has begun was computed, and isn't tried anywhere else.
            if not (left and hold.confirmed and change.blocks_precise and change.blocks) or change.leg:
                continue
            left -= 1
            self._followed[key] = _Followed(rank, int(np.frombuffer(change.blocks, np.uint64)[-1]), now)

    def _look_for_prompt(
        self, request: _Followed, engines: dict[tuple[str, str], list[Worker]], pool: PoolScheduler
    ) -> None:
        own = request.worker.registration
        signs = self._engines.get((own.server or "", own.boot_id))
        if signs is None or not request.worker.tells:
            return
        lives = pool.index.find_reporters(request.block)
        if request.worker.life in lives:
            signs.cache.append("")
            return
        for rank in engines[own.server or "", own.boot_id]:
            if rank.life in lives:
                signs.cache.append(f"a prompt that was sent to {request.worker.name} is in the cache of {rank.name}")
                return


def _sent(rank: Worker) -> int:
    """Requests on the books that its report must show."""
    return rank.open - rank.unseen_waiting - rank.unseen_running


def _crossed(ranks: Sequence[Worker]) -> str:
    """In words, that one rank has fewer requests than were sent to it and another one more; empty when that isn't so,
    or isn't known."""
    fewer = more = ""
    for rank in ranks:
        report = rank.report
        if report is None or rank.opaque:
            continue
        shown = report.running + report.waiting
        words = f"{shown} at {rank.name}, where {rank.open} were sent"
        if shown < _sent(rank):
            fewer = words
        # A report may have those that were sent or that ended just before it came.
        elif shown > rank.open + len(rank.ended_lately):
            more = words
    return f"{fewer}, and {more}" if fewer and more else ""
