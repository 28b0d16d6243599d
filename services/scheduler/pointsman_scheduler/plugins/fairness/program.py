"""`program`: a tenant's turns are shared among its programs, such as the runs of coding agents.

A program is a session with its sub-agents. A run of many parallel requests gets no more of an engine's time than a run
of one request at a time. Tenants come first: a client that gives each request a session of its own takes turns from its
own tenant alone.
"""

from collections import OrderedDict
from typing import Final

from pointsman_plugins.scheduling.flow_control import Demand, FairnessPolicy, Turns
from pointsman_scheduler.plugins.fairness.least_attained import LeastAttainedParams, LeastAttainedService

TENANTS: Final = 1024
"""Tenants without waiting requests whose programs' service is remembered."""
_END: Final = "\n"
"""Ends the program in the name of a flow: no session has a line feed."""


class ProgramFairness(FairnessPolicy[LeastAttainedParams]):
    """Shares in tokens among tenants (`fairness_id`, by weight), and among the programs of each."""

    type_name = "program"

    def flow_of(self, demand: Demand) -> str:
        return f"{demand.program}{_END}{demand.flow}"

    def turns(self) -> Turns:
        return _ProgramTurns(
            LeastAttainedService(self.name, self.params),
            LeastAttainedService(self.name, self.params.model_copy(update={"weights": {}})),
        )


class _ProgramTurns(Turns):
    def __init__(self, among_tenants: LeastAttainedService, among_programs: LeastAttainedService) -> None:
        self._tenants: Final = among_tenants.turns()
        self._among_programs: Final = among_programs
        self._programs: Final[OrderedDict[str, Turns]] = OrderedDict()
        self._waiting: Final[dict[str, int]] = {}
        """Tenant → programs that wait."""

    def enter(self, flow: str, now: float) -> None:
        program, _, tenant = flow.partition(_END)
        turns = self._programs.get(tenant)
        if turns is None:
            turns = self._programs[tenant] = self._among_programs.turns()
        if tenant not in self._waiting:
            self._waiting[tenant] = 0
            self._tenants.enter(tenant, now)
        self._waiting[tenant] += 1
        turns.enter(program, now)

    def leave(self, flow: str) -> None:
        program, _, tenant = flow.partition(_END)
        self._programs[tenant].leave(program)
        self._waiting[tenant] -= 1
        if self._waiting[tenant]:
            return
        del self._waiting[tenant]
        self._tenants.leave(tenant)
        self._programs.move_to_end(tenant)
        if len(self._programs) - len(self._waiting) > TENANTS:
            del self._programs[next(each for each in self._programs if each not in self._waiting)]

    def next(self, now: float) -> str:
        tenant = self._tenants.next(now)
        return f"{self._programs[tenant].next(now)}{_END}{tenant}"

    def served(self, demand: Demand, flow: str, now: float) -> None:
        program, _, tenant = flow.partition(_END)
        self._tenants.served(demand, tenant, now)
        self._programs[tenant].served(demand, program, now)
