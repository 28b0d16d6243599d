"""Sets up the shared limits; without a configured limit, none of it runs."""

import sys
import time
from functools import partial
from typing import Final

from pointsman_contracts.limits import LIMITS_BUCKET, LimitAsks, LimitHandOver, LimitReleases
from pointsman_contracts.response import ResponseCompleted
from pointsman_contracts.subjects import ANY
from pointsman_hosting.configuration import Revision
from pointsman_hosting.service import Service
from pointsman_limits.keepers.budgets import Budgets
from pointsman_limits.keepers.ends_reader import EndsReader
from pointsman_limits.keepers.limit_metrics import LimitMetrics
from pointsman_limits.keepers.shard_keeper import ShardKeeper
from pointsman_limits.keepers.shared_limiter import SharedLimiter
from pointsman_preprocessor.domain.pipeline import Pipeline
from pointsman_preprocessor.plugins.budget import Budget
from pointsman_preprocessor.plugins.limit import Limit, ask_together
from pointsman_preprocessor.plugins.token_limits import TokenLimit
from pointsman_preprocessor.settings import PreprocessorSettings

TICK_S: Final = 0.1
SWEEP_S: Final = 1.0


_running_s: Final = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic
_BEGAN: Final = time.time() - _running_s()


def steady_clock() -> float:
    """Unix seconds that never go back: counts outlive the process and its clock. They go
    on while the process is stopped, and where the system can tell while the machine sleeps too: leases run out."""
    return _BEGAN + _running_s()


class SharedLimits:
    """The shared limits of one preprocessor."""

    def __init__(self, service: Service[PreprocessorSettings]) -> None:
        self._bus: Final = service.bus
        metrics = LimitMetrics(service.registry)
        self._keeper: Final = ShardKeeper(
            service.bus, service.heartbeat, service.open_bucket(LIMITS_BUCKET), metrics, steady_clock
        )
        self.limiter: Final = SharedLimiter(service.bus, service.heartbeat, self._keeper, metrics, steady_clock)
        reader = EndsReader(service.events, service.bus.link, f"{service.process.inbox}.ends")
        self._budgets: Final = Budgets(service.bus, reader, self._keeper, metrics, steady_clock)
        self.limiter.spending_missing = lambda: self._budgets.missing
        self.limiter.read_spending = self._budgets.read_soon
        self.limiter.ends_known = lambda: self._budgets.is_current
        # So that a request seldom finds a shard whose spending isn't known.
        self._keeper.on_kept = self._budgets.read_soon
        self._listens = False
        me = service.process.instance
        service.bus.answer(LimitAsks, self.limiter.answer_peers, me)
        service.bus.answer(LimitHandOver, self._keeper.hand_over, me)
        service.bus.listen(LimitReleases, self.limiter.receive_release, me)
        service.every(TICK_S, self._keeper.tick)
        service.every(SWEEP_S, self.limiter.tick)
        service.every(SWEEP_S, self._budgets.tick)
        service.run_in_background("budgets", self._budgets.follow_ends)
        service.on_start(self._keeper.wait_until_ready)
        service.on_start(self._budgets.wait_until_ready)
        service.on_stop(self._keeper.close)

    def apply_limits(self, revision: Revision[Pipeline]) -> None:
        ask_together(revision.compiled.steps)
        limits: list[Limit] = [processor for processor in revision.compiled.processors if isinstance(processor, Limit)]
        self.limiter.set_prices({limit.name: limit.price for limit in limits if isinstance(limit, TokenLimit)})
        budgets = [processor for processor in revision.compiled.processors if isinstance(processor, Budget)]
        self._budgets.set_budgets({budget.name: budget.scopes for budget in budgets})
        if limits or budgets:
            self._keeper.begin_keeping()
        # Budgets also use the learnt lengths of answers.
        if not self._listens and (budgets or any(limit.windows[0].unit != "requests" for limit in limits)):
            self._listens = True
            self._bus.listen(ResponseCompleted, self.limiter.settle_request, ANY)
