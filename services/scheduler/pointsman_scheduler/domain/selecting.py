"""Runs the scheduling profiles of a request and lets the handler select among their results."""

import numpy as np

from pointsman_core.refusal import Refusal
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.run import BROKEN, Removed, Run, Selection
from pointsman_scheduler.domain.cache_room import FleetRoom
from pointsman_scheduler.domain.late_binding import NeedsRoom
from pointsman_scheduler.domain.policy import Policy
from pointsman_scheduler.domain.reasons import counted, not_given, reasons_of


def select_endpoints(
    request: ScheduleRequest,
    policy: Policy,
    everyone: Candidates,
    allowed: Candidates,
    runs: list[Run],
    without_room: Removed | None = None,
) -> Selection:
    """Run the scheduling profiles that the handler wants, into `runs`. `without_room`: workers of `everyone` that are
    left out of `allowed` because they have no room. Raises Refusal."""
    results: dict[str, Run | None] = {}
    profiles, handler = policy.profiles, policy.handler
    while names := handler.pick(request, profiles, results):
        finished = len(results)
        for name in names:
            if name not in results:
                run = profiles[name].run(request, allowed)
                if without_room is not None:
                    run.removed.insert(0, without_room)
                elif allowed is not everyone:
                    run.removed.insert(0, not_given(everyone, allowed))
                runs.append(run)
                results[name] = run if run.chosen else None
        # Each turn runs a profile that hasn't run, so the number of profiles bounds the loop.
        if len(results) in (finished, len(profiles)):
            break
    if not runs:
        raise BROKEN.refusal(f"No scheduling profile ran for request {request.request_id}.")
    selection = handler.process_results(request, results)
    if selection is None:
        raise _refusal(everyone, runs)
    return selection


def select_with_room(
    request: ScheduleRequest, policy: Policy, everyone: Candidates, runs: list[Run], engines: FleetRoom
) -> tuple[Selection, NeedsRoom | None]:
    """Like `select_endpoints`, among the engines that have room for the prompt; where none has, among all. Then the
    second value says how the request waits for room; None where it can't wait: it is sent again, or another engine
    computes its prompt."""
    matched = engines.match_prompt(request)
    continued = engines.find_continued(request)
    lacking = engines.find_lacking(request, continued, matched)
    if not lacking:
        return select_endpoints(request, policy, everyone, everyone, runs), None
    keep = np.ones(everyone.size, dtype=np.bool_)
    keep[lacking] = False
    well = everyone.take(everyone.fleet.eligible_until) >= everyone.now
    roomy = everyone.keep(keep)
    # An engine that is dead, or drains, has all its room: that mustn't bring it requests which engines that serve take.
    if roomy.size and ((well & keep).any() or not well.any()):
        try:
            return select_endpoints(
                request, policy, everyone, roomy, runs, without_room=engines.explain_lacking(lacking)
            ), None
        except Refusal:  # another reason than room removed the others
            runs.clear()
    selection = select_endpoints(request, policy, everyone, everyone, runs)
    if not engines.may_wait or request.attempt > 1 or selection.legs:
        return selection, None
    candidates, since = selection.primary.candidates, everyone.now * 1000.0
    among = None if candidates.rows is None else frozenset([worker.name for worker in candidates.workers()])
    if not request.facts.dry_run:
        engines.keep_while_waiting(continued)
    needed = NeedsRoom(
        request=request, since=since, continued=continued, among=among, matched=matched, matched_at=since
    )
    return selection, needed


def _refusal(everyone: Candidates, runs: list[Run]) -> Refusal:
    last = next((run for run in reversed(runs) if run.exhausted is not None), runs[-1])
    exhausted = last.exhausted or BROKEN
    why = f" ({counted(reasons_of(last))})" if last.exhausted is not None and last.removed else ""
    pool = everyone.fleet.workers[0].registration.pool
    return exhausted.refusal(f"No endpoint of pool {pool!r} can take this request: {last.error}{why}.")


def prefer_worker(run: Run, worker: str, fleet: Fleet) -> None:
    """Put the worker first, if it is still a candidate."""
    found = fleet.find(worker)
    if found is None or not found.present or not np.any(run.candidates.indices() == found.row):
        return
    if found.row in run.chosen:
        run.chosen.remove(found.row)
    else:
        run.chosen.pop()
    run.chosen.insert(0, found.row)
