"""Judges the workers of a pool by what requests experience there: failures against those of their peers, and progress.

Requests alone decide. A worker's own pages only say when to try it again.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

from pointsman_contracts.timing import TIMES
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.outliers import CONSECUTIVE, LEAST_FAILURES, Peers
from pointsman_plugins.scheduling.worker import NEVER, Hold, Worker
from pointsman_scheduler.domain.doubted_workers import DOUBTS, DoubtedWorkers
from pointsman_scheduler.domain.patience import (
    LEAST_ENDLESS_S,
    LEAST_S,
    LEAST_SILENT_S,
    LEAST_STANDING_S,
    LEAST_SUSPECT_S,
    Patience,
    expected,
)

LACKING_S: Final = 10.0
"""How long a worker gets no requests for a model or adapter that it answered 404 for, while its peers served it."""
LOOK_S: Final = 0.5
"""Between two looks for requests that wait too long."""
FAILING_SHARE: Final = 0.2
"""A worker that fails this part of its requests is named, though it keeps its share because its peers are no better."""
LEAST_UNANSWERED: Final = 3
"""Requests at a worker that shows nothing before they make it suspect: those that wait and aren't certainly late, or
streams that have begun and don't end."""
ASKED_TO_MOVE: Final = 3
"""How often an edge is asked to move a request: a question may get lost, and an edge may know no other endpoint."""

_BROKE_OFF: Final = "its answer broke off, or the client left"
BLAMED: Final = frozenset(("refused", "failed", "timeout", "limited", "cut_off"))
"""Outcomes of attempts that count against a worker. `stalled` is a scheduler's own verdict, and counted where it is
found. Any other outcome but these and `DOUBTED` is the edge's own."""
DOUBTED: Final = frozenset(("denied", "missing", "empty"))
"""Outcomes that count once a peer has answered the same request: `record_disproved_refusal`."""


class WorkerJudgement(NamedTuple):
    """Why a worker gets fewer requests than its load allows; fields as `pointsman_contracts.verdicts.WorkerVerdict`."""

    worker: Worker
    verdict: str
    reason: str


class Overdue(NamedTuple):
    """Requests that wait at a worker for far longer than predicted, and where they shouldn't go."""

    worker: Worker
    holds: list[Hold]
    avoid: tuple[str, ...]


class OutlierDetection:
    """The outlier detection of one pool. Times are monotonic seconds."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet: Final = fleet
        self.patience: Final = Patience()
        self._looked_at = NEVER
        self._doubted: Final = DoubtedWorkers()
        self._unanswered: dict[Worker, str] = {}
        """Workers with overdue requests while no other one answers either, and for how long."""

    def put(self, hold: Hold, now: float, others: Iterable[Hold] | None = None) -> None:
        """The request was sent to its worker. `others`: its earlier reservations, for other parts of the work."""
        worker = hold.worker
        worker.sent_at = now
        if not hold.change.leg:
            self.patience.predict_wait(hold)
        elif hold.change.uncached_tokens and others:
            # The endpoint that answers can't begin before this worker has computed the prompt.
            self.patience.predict_wait(hold)
            for answering in others:
                if not answering.change.leg:
                    answering.predicted_ms += hold.predicted_ms
            hold.predicted_ms = 0.0
        if worker.standing.ejected:
            worker.standing.note_trial(now)
            self._fleet.judge(worker)

    def started(self, hold: Hold, now: float) -> None:
        """The first byte of its answer came."""
        self._answered(hold, now, whole=False)
        self.patience.learn_wait(hold, now)

    def ended(self, hold: Hold, now: float, *, begun: bool) -> None:
        """Its answer came as a whole, and was no error. `begun`: `started` was called."""
        self.patience.learn_end(hold, now)
        if not begun:
            hold.worker.ended_at = now
            self._answered(hold, now, whole=True)
            if not hold.change.streamed:
                self.patience.learn_wait(hold, now)
            return
        hold.worker.answered_at = hold.worker.ended_at = now
        standing = hold.worker.standing
        if standing.cuts and standing.record_answer(now, hold.at, whole=True):
            self._fleet.judge(hold.worker)

    def _answered(self, hold: Hold, now: float, *, whole: bool) -> None:
        worker = hold.worker
        worker.answered_at = now
        if hold.at > worker.answered_sent:
            worker.answered_sent = hold.at
        standing = worker.standing
        standing.tally.add_results(now, good=1)
        # An answer after the time at which its request was overdue doesn't show that the worker answers in time.
        if (standing.failures or standing.ejected) and not hold.stalled:
            standing.record_answer(now, hold.at, whole=whole)
            self._fleet.judge(worker)

    def failed(self, worker: Worker, outcome: str, status: int | None, hold: Hold | None, now: float) -> None:
        """An attempt failed; `outcome` and `status` as in `AttemptFailed`. `hold`: its reservation there, if known."""
        if outcome == "stalled":
            if hold is not None and not hold.stalled:  # another scheduler found it
                self._stall(hold, now)
            return
        if outcome not in BLAMED or (status is not None and 400 <= status < 500 and status != 429):
            return
        what = outcome if status is None else f"{outcome} {status}"
        self._fail(worker, what, hold, now, cut=outcome == "cut_off")
        standing = worker.standing
        if outcome == "refused" and not standing.ejected:
            standing.eject_worker("it refused a connection", now, trials=1)
            self._fleet.judge(worker)
            if worker.registration.server is not None:
                self._eject_ranks(worker, now)

    def _eject_ranks(self, refused: Worker, now: float) -> None:
        """Nothing listens at the address of this worker, so the other ranks of its engine are gone as well."""
        gone = refused.registration
        for worker in self._fleet.present:
            own = worker.registration
            if own.server == gone.server and own.url == gone.url and not worker.standing.ejected:
                worker.standing.eject_worker(
                    f"{refused.name}, at the same address, refused a connection", now, trials=1
                )
                self._fleet.judge(worker)

    def record_unknown_end(self, hold: Hold, now: float) -> None:
        """Its answer broke off, or its client left: its edge can't tell."""
        self._fail(hold.worker, _BROKE_OFF, hold, now, unsure=True)

    def record_disproved_refusal(self, worker: Worker, outcome: str, name: str, now: float) -> None:
        """A peer answered the request that this worker refused as the client's fault, or had no word for. `outcome`:
        one of `DOUBTED`; `name`: of the model or adapter."""
        if outcome == "missing":
            self._fleet.lack(worker, name, now + LACKING_S)
        elif outcome == "denied":
            self._fail(worker, "denied, answered by a peer", None, now)
        elif outcome == "empty":
            # A model that samples may end at once by chance, at any worker.
            self._fail(worker, "an answer without a word, where a peer had one", None, now, unsure=True)

    def record_doubt(self, hold: Hold, doubt: str, now: float) -> None:
        """Its whole answer came, and the request is at fault or the worker: one of `DOUBTS`. A worker is ejected that
        has many more such answers than its peers, unless they follow the requests to a peer."""
        worker = hold.worker
        worker.answered_at = worker.ended_at = now
        if now < self._doubted.acquitted_until:
            return
        was_out = worker.standing.ejected
        self._fail(worker, DOUBTS[doubt], hold, now, unsure=True)
        for each in self._doubted.compare(
            worker, self._fleet.present, now, new=worker.standing.ejected and not was_out
        ):
            each.standing.acquit_worker(now)
            self._fleet.judge(each)

    def _fail(
        self, worker: Worker, what: str, hold: Hold | None, now: float, *, cut: bool = False, unsure: bool = False
    ) -> None:
        standing = worker.standing
        begun = hold is not None and hold.confirmed
        standing.record_failure(what, now, None if hold is None else hold.at, cut=cut, unsure=unsure, begun=begun)
        if standing.may_be_outlier:
            standing.eject_if_outlier(what, self._peers_of(worker, now), now)
        if standing.ejected:
            self._fleet.judge(worker)

    def _stall(self, hold: Hold, now: float) -> None:
        hold.stalled = True
        worker = hold.worker
        waited = _waited(hold, now)
        self._fail(worker, waited, hold, now)
        # Requests that were sent later were answered: it is slow or refuses some, and failures count as usual.
        if not worker.standing.ejected and worker.answered_sent < hold.at:
            worker.standing.eject_worker(f"it doesn't answer: {waited}", now, hung=True, trials=1)
            self._fleet.judge(worker)

    def overdue(self, holds: Iterable[Hold], now: float, slack_s: float) -> list[Overdue]:
        """Look for requests that wait far longer than predicted, judge their workers, and return the requests that
        should leave. `slack_s`: how much longer than usual all may take now, because this machine is busy."""
        if now - self._looked_at < LOOK_S:
            return []
        self._looked_at = now
        self.patience.update_limits()
        self._unanswered = {}
        found: dict[Worker, list[Hold]] = {}
        stuck: dict[Worker, list[Hold]] = {}
        for hold in holds:
            if hold.change.leg:
                continue
            waited_s = now - hold.at - slack_s
            if hold.confirmed:
                if hold.change.output_tokens and not hold.stalled and self.patience.is_endless(hold, waited_s):
                    stuck.setdefault(hold.worker, []).append(hold)
            elif self.patience.is_late(hold, waited_s) and hold.worker.present:
                found.setdefault(hold.worker, []).append(hold)
        for worker, holds_there in stuck.items():
            self._judge_stuck(worker, holds_there, now)
        return [
            each
            for worker, late in found.items()
            if (each := self._judge_waiting(worker, late, now, slack_s)) is not None
        ]

    def _judge_stuck(self, worker: Worker, endless: list[Hold], now: float) -> None:
        """Streams that have begun and should have ended long ago count as broken off, and stay where they are. A client
        that reads slowly has such a stream, too: then its engine ends others, or has nothing to do. Where its load is
        unknown, it takes several of them."""
        if self._computes(worker, now) and not self.patience.knows_lengths:
            return
        stuck = [hold for hold in endless if hold.at >= worker.ended_at]
        report = worker.report
        fresh = now - worker.heard <= TIMES.worker_silent_s
        if not fresh or report is None or not worker.reports_load:
            enough = len(stuck) >= LEAST_UNANSWERED
        else:
            enough = report.running >= len(stuck)
        if not enough:
            return
        for hold in stuck:
            hold.stalled = True
            self._fail(
                worker,
                f"an answer stalled after it had begun: no end within {now - hold.at:.1f} s",
                hold,
                now,
                cut=True,
            )

    def _judge_waiting(self, worker: Worker, late: list[Hold], now: float, slack_s: float) -> Overdue | None:
        stands = self._stands(worker, now)
        late = self._unanswered_by(worker, late, now - slack_s, stands=stands)
        if not late:
            return None
        peers = max((each.answered_sent for each in self._fleet.present if each is not worker), default=NEVER)
        due: list[Hold] = []
        for hold in late:
            if _judged_alone(hold):
                overdue = hold.at <= max(peers, worker.answered_sent) or stands
            else:
                overdue = hold.at <= peers or worker.standing.hung
            if hold.stalled or overdue:
                due.append(hold)
                if not hold.stalled:
                    self._stall(hold, now)
        if not worker.standing.ejected:
            oldest = min(late, key=attrgetter("at"))
            self._unanswered[worker] = _waited(oldest, now)
        unwell = [each for each in self._fleet.present if each.standing.ejected or each.standing.is_failing]
        well = len(self._fleet.present) - len(unwell) - (worker not in unwell)
        leaving = [hold for hold in due if not hold.moved and hold.asked_to_move < ASKED_TO_MOVE]
        if not well or not leaving:
            return None
        for hold in leaving:
            hold.asked_to_move += 1
        return Overdue(worker, leaving, tuple(sorted([each.name for each in unwell if each is not worker])))

    def _unanswered_by(self, worker: Worker, late: list[Hold], now: float, *, stands: bool) -> list[Hold]:
        """Those of a worker's late requests that it hasn't begun to answer, as far as can be seen. `stands`: whether
        its counters do.

        Nothing is seen of a whole answer before its end, and nothing tells how long media take. While the worker shows
        any progress, such a request isn't unanswered; later, it depends on what is known of it and of its worker."""
        found: list[Hold] = []
        unsure: list[Hold] = []
        hung = worker.standing.hung
        unknown = self._computes(worker, now) and not self.patience.knows_lengths
        progress = max(worker.answered_at, worker.worked_at if worker.worked is not None else NEVER)
        for hold in late:
            quiet_s = now - max(progress, hold.at)
            if _judged_alone(hold):
                found.append(hold)
            elif not unknown and self.patience.certainly_late(hold, now - hold.at):
                # Its counters may move for requests that it begins and doesn't end either.
                if now - max(worker.answered_at, hold.at) > (LEAST_SUSPECT_S if hung else LEAST_S):
                    found.append(hold)
            elif stands and quiet_s > LEAST_STANDING_S:
                found.append(hold)
            elif quiet_s > LEAST_SILENT_S:
                unsure.append(hold)
        if found or hung or len(unsure) >= LEAST_UNANSWERED:
            found += unsure
        return found

    def _computes(self, worker: Worker, now: float) -> bool:
        """Whether the worker's own counters show that it computes tokens."""
        return worker.worked is not None and now - worker.worked_at <= LEAST_STANDING_S

    def _stands(self, worker: Worker, now: float, longer_than_s: float = LEAST_S) -> bool:
        """Whether the worker's own counters show that it computes nothing."""
        fresh = now - worker.heard <= TIMES.worker_silent_s
        return fresh and worker.worked is not None and now - worker.worked_at > longer_than_s

    def _standing_still(self, worker: Worker, now: float) -> str:
        """In words, that it says it has work and does none; else empty. It may have no request of the pool: engines
        that look full get none."""
        report = worker.report
        if report is None or not worker.reports_load or not (report.running or report.waiting or worker.opaque):
            return ""
        if not self._stands(worker, now, LEAST_ENDLESS_S):
            return ""
        load = f"{report.running:g} running and {report.waiting:g} waiting requests, {report.kv_usage:.0%} of its cache"
        why = f"it has stalled: it reports {load}, and its counters stand for {now - worker.worked_at:.1f} s"
        return f"{why}; schedulers use their own counts" if worker.opaque else why

    def _peers_of(self, worker: Worker, now: float) -> Peers:
        peers, workers = Peers(), self._fleet.present
        ejected = 0
        for each in workers:
            if each.standing.ejected:
                ejected += 1
            elif each is not worker:
                good, bad = each.standing.tally.count_results(now)
                if good + bad:
                    peers.shares.append(bad / (good + bad))
        peers.ejected = ejected / max(1, len(workers))
        return peers

    def within_ms(self, hold: Hold) -> float | None:
        """After how many milliseconds without an answer the request may be tried at a second worker, beside the first
        one; None where that isn't known, or where no other worker is known to answer: it would only double the load."""
        unwell = len(self._fleet.ejected) + len(self._unanswered)
        other = len(self._fleet.present) - unwell - (not hold.worker.standing.ejected)
        return self.patience.within_ms(hold) if other > 0 else None

    def verdicts(self, now: float) -> list[WorkerJudgement]:
        """The workers that are unwell."""
        found: list[WorkerJudgement] = []
        for worker in self._fleet.present:
            standing = worker.standing
            if standing.ejected:
                found.append(WorkerJudgement(worker, "suspect" if standing.hung else "ejected", standing.reason))
            elif names := [name for name, until in worker.lacking.items() if until > now]:
                told = ", ".join(sorted(names))
                found.append(WorkerJudgement(worker, "lacking", f"it answers 404 for {told}, which its peers serve"))
            elif worker in self._unanswered:
                found.append(
                    WorkerJudgement(worker, "failing", f"{self._unanswered[worker]}; its peers don't answer either")
                )
            else:
                good, bad = standing.tally.count_results(now)
                in_part = bad >= LEAST_FAILURES and bad >= FAILING_SHARE * (good + bad)
                if in_part or (bad and standing.cuts >= CONSECUTIVE):
                    why = f"{bad} of its last {good + bad} requests failed, the last with: {standing.last}"
                    found.append(WorkerJudgement(worker, "failing", f"{why}; its peers are no better"))
                elif why := self._standing_still(worker, now):
                    found.append(WorkerJudgement(worker, "failing", why))
        return found


def _judged_alone(hold: Hold) -> bool:
    """Whether its time to the first byte is known well enough to need no other sign of its worker."""
    return hold.change.streamed and not hold.change.media


def _waited(hold: Hold, now: float) -> str:
    expected_ms = expected(hold)
    told = "" if expected_ms is None else f", predicted {expected_ms / 1000:.2f} s"
    return f"no answer within {now - hold.at:.1f} s{told}"
