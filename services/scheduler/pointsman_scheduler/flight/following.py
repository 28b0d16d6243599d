"""Recorded decisions made again by other code or another policy, each on the state that really was.

After each decision the recorded choice is reserved, not the new one: otherwise the first difference would change what
all later requests meet. Requests that waited for their engine are compared with another policy's choice at the moment
when they left. By the recorded policies they left as planned for all that waited, and no plan is made here.
"""

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from pointsman_contracts.scheduling import ProfileRun
from pointsman_core import why
from pointsman_core.config import SchedulingPolicy
from pointsman_flight.reader import Flight
from pointsman_flight.records import Decided, RecordedOutcome
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.dice import Dice
from pointsman_plugins.scheduling.fleet import MATCHED
from pointsman_plugins.scheduling.request import RequestKey, ScheduleRequest
from pointsman_plugins.scheduling.run import Run, Selection
from pointsman_plugins.scheduling.worker import Hold
from pointsman_scheduler.domain.outcome import Outcome, Refused, Scheduled, Sight
from pointsman_scheduler.domain.policy import Policy, PolicyRegistries
from pointsman_scheduler.domain.pool import PoolScheduler
from pointsman_scheduler.domain.prefix_index import PrefixIndex
from pointsman_scheduler.flight.outcomes import recorded
from pointsman_scheduler.flight.replay import FlightReplay, request_of
from pointsman_scheduler.scheduled_event import explain

PREFILL: Final = "prefill"
TIE: Final = "a tie was broken otherwise"
_ALIKE: Final = 1e-9


class NotComparedError(Exception):
    """A recorded decision that isn't compared."""


class OtherChoice(NamedTuple):
    """A decision that would differ."""

    reason: str
    """In a few words, the same for decisions that differ alike."""
    words: str
    """The explanation of this one."""


class FollowingReplay(FlightReplay):
    """`settings`: the policy that decides; None for the recorded ones."""

    def __init__(
        self, flight: Flight, registries: PolicyRegistries, name: str = "", settings: SchedulingPolicy | None = None
    ) -> None:
        self._name: Final = name
        self._settings: Final = settings
        self._postponed: dict[RequestKey, ScheduleRequest] = {}
        super().__init__(flight, registries)

    def new_pool(self, index: PrefixIndex) -> PoolScheduler:
        return _FollowingPool(self.flight.pool, self.flight.scheduler, index)

    def compiled(self, name: str, settings: SchedulingPolicy) -> Policy:
        if self._settings is not None:
            name, settings = self._name, self._settings
        return replace(super().compiled(name, settings), late_binding=None, room=None)

    def learnt(self) -> dict[int, Policy]:
        # Another policy's plugins don't know what the recorded ones learnt; they learn from here on.
        return {} if self._settings is not None else dict(self.policies)

    def decide(self, record: Decided) -> Outcome | Exception:
        key = (record.edge, record.request_id)
        request = self._postponed.pop(key, None) if record.request is None else request_of(record)
        if request is None:
            return NotComparedError("its facts are in a segment before")
        if record.outcome.kind == "postponed":
            self._postponed[key] = request
            if self._settings is None:  # its plugins learn of a request when it comes, and when it leaves
                self._choice(request, record)
            return NotComparedError("it waited for its engine")
        request.bound = record.bound if self._settings is None else None
        outcome = self._choice(request, record)
        self._follow(request, record)
        if record.request is None and self._settings is None:
            return NotComparedError("it left by a plan for all that waited")
        return outcome

    def compare(self, record: Decided, outcome: Outcome | Exception) -> str:
        then = record.outcome
        if isinstance(outcome, NotComparedError) or then.held:
            return ""
        now = recorded(outcome)
        same = (then.kind, then.endpoints[:1], then.code, then.legs, then.rank)
        if same == (now.kind, now.endpoints[:1], now.code, now.legs, now.rank):
            return ""
        return why_other(then, outcome).words

    def _choice(self, request: ScheduleRequest, record: Decided) -> Outcome | Exception:
        try:
            return self.pool.decide(request, record.at, record.seed, self.policies[record.policy])
        except Exception as error:  # noqa: BLE001 - the result, as the recorded one may be
            return error

    def _follow(self, request: ScheduleRequest, record: Decided) -> None:
        if isinstance(self.pool, _FollowingPool) and record.outcome.kind == "scheduled":
            self.pool.follow(request, record.at, record.outcome)


class _FollowingPool(PoolScheduler):
    """Makes only the reservations of `follow`."""

    def _reserve(self, request: ScheduleRequest, selection: Selection, sight: Sight, former: Hold | None) -> list[Hold]:
        del request, selection, sight, former
        return []  # `follow` does

    def follow(self, request: ScheduleRequest, now: float, then: RecordedOutcome) -> None:
        """Reserve the recorded choice."""
        fleet = self.fleet
        if then.endpoints[0] not in fleet.names:
            return
        everyone = Candidates(fleet, now, Dice(0))
        figures = fleet.figures()
        self.index.match(request.blocks, request.facts.block_tokens, figures[MATCHED])

        def run(worker: str) -> Run:
            return Run("recorded", everyone, {}, chosen=[fleet.names.index(worker)])

        legs = {leg: run(worker) for leg, worker in then.legs if worker in fleet.names}
        prompt_leg = PREFILL if PREFILL in legs else ""
        selection = Selection(run(then.endpoints[0]), legs, prompt_leg, then.rank)
        sight = Sight(fleet.workers, fleet.names, now, figures, fleet.opaque)
        super()._reserve(request, selection, sight, self.books.find_reservation(request.key))


def why_other(then: RecordedOutcome, outcome: Outcome | Exception) -> OtherChoice:
    """Why another choice was made than the recorded one, by the explanation that `pointsman explain` gives."""
    if isinstance(outcome, Exception):
        return OtherChoice(f"a plugin raised {type(outcome).__name__}", str(outcome))
    if isinstance(outcome, Refused):
        code = outcome.refusal.code or "refused"
        before = then.endpoints[0] if then.endpoints else then.code
        return OtherChoice(f"refused: {code}", f"{before} before; now {outcome.refusal.message}")
    if not isinstance(outcome, Scheduled):
        return OtherChoice("waits for its engine", "")
    now = outcome.endpoints[0].name
    if then.kind != "scheduled":
        return OtherChoice(f"{then.kind} before: {then.code}", f"goes to {now}")
    before = then.endpoints[0]
    if before == now:
        return OtherChoice("another leg or rank", f"{before}: {dict(then.legs)} rank {then.rank} before")
    run = explain(outcome, len(outcome.sight.workers))[_primary(outcome)]
    verdict = next((each for each in why.verdicts(run) if each.worker == before), None)
    words = f"{before} before, now {now}" + (f"; {before}: {verdict.words}" if verdict is not None else "")
    return OtherChoice(_grouped(run, before, now), words)


def _primary(outcome: Scheduled) -> int:
    return next(place for place, run in enumerate(outcome.runs) if run is outcome.selection.primary)


def _grouped(run: ProfileRun, before: str, now: str) -> str:
    columns = run.candidates
    if before in columns.filtered:
        return f"filter {columns.filtered[before].partition(':')[0]}"
    if before not in columns.workers or not columns.scores:
        return "the worker is no candidate"
    here, there = columns.workers.index(now), columns.workers.index(before)
    gains = {
        name: run.weights.get(name, 1.0) * ((scores[here] or 0.0) - (scores[there] or 0.0))
        for name, scores in columns.scores.items()
    }
    best = max(gains, key=lambda name: gains[name])
    return TIE if np.isclose(gains[best], 0.0, atol=_ALIKE) else f"scorer {best}"
