"""Judges decisions once their requests have ended: from events to `RequestsJudged`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from pointsman_contracts.regret import JudgedCandidate, JudgedChoice, JudgedRequest, RequestsJudged
from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_contracts.scheduling import ProfileRun, RequestScheduled
from pointsman_delay.hindsight import Hindsight, JudgedDecision, Scale
from pointsman_recorder.domain.reasons import BEST, RunColumns, filter_of, reason

AT_ONCE: Final = 32
"""Requests in one message: below 64 KiB, with names of 60 characters too."""
EVERY_MS: Final = 1000
_LOST_MS: Final = 3_600_000
"""A request whose end didn't come in this time is forgotten."""
_SHOWN: Final = 8
"""Workers whose costs are published; the chosen ones besides."""

JudgedEvent: TypeAlias = RequestScheduled | ResponseStarted | ResponseCompleted | AttemptFailed
"""The events that a judge reads."""
_READ: Final[Mapping[str, type[JudgedEvent]]] = {
    kind.address.type_id: kind for kind in (RequestScheduled, ResponseStarted, ResponseCompleted, AttemptFailed)
}


class Verdicts(NamedTuple):
    """Some judged requests of a pool: the content of a `RequestsJudged`."""

    pool: str
    at_ms: int
    scale: Scale
    requests: list[JudgedRequest]
    choices: list[tuple[str, str, int]]
    """Profile, reason and regret in microseconds of each choice, and of each filter that cost something."""
    unjudged: dict[str, int]

    def make_message(self, source: str, sequence: int, judge: str) -> RequestsJudged:
        return RequestsJudged(
            source=source,
            sequence=sequence,
            at_ms=self.at_ms,
            judge=judge,
            pool=self.pool,
            rates=tuple(self.scale.rates),
            others=self.scale.others,
            batch_tokens=self.scale.budget,
            first_token_weight=self.scale.first_token,
            requests=tuple(self.requests),
            unjudged=self.unjudged,
        )


Key = tuple[str, str]
"""Edge and request id."""


class _Decision(NamedTuple):
    """A decision whose request hasn't ended."""

    request_id: str
    edge: str
    at_ms: int
    runs: list[RunColumns]
    """The run whose choice was used, then shadows. None of a request that can't be judged, and is counted already."""
    bound: bool
    worker: str


class _Pool:
    def __init__(self) -> None:
        self.hindsight: Final = Hindsight[Key]()
        self.open: dict[Key, _Decision] = {}
        self.over: dict[Key, _Decision] = {}
        self.unjudged: Counter[str] = Counter()
        self.at_ms = 0

    def forget_before(self, before_ms: int) -> None:
        """Forget decisions from before a time; they stand in their order."""
        for key, decision in list(self.open.items()):
            if decision.at_ms >= before_ms:
                break
            del self.open[key]


class Judge:
    """Reads events in the order of their stream; `due` says when to ask for `verdicts`."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._at_ms = self._asked_ms = 0

    def judge_body(self, kind: str, body: bytes) -> None:
        """One event, of any type, as it was published. Raises MalformedMessage for one that can't be read."""
        if kind in _READ:
            self.judge_event(_READ[kind].decode(body))

    def judge_event(self, event: JudgedEvent) -> None:
        self._at_ms = max(self._at_ms, event.at_ms)
        match event:
            case RequestScheduled():
                self._scheduled(event)
            case ResponseStarted():
                self._started(event)
            case ResponseCompleted():
                self._completed(event)
            case AttemptFailed():
                self._failed(event)

    @property
    def is_due(self) -> bool:
        """Whether a second of events has passed since the last verdicts."""
        return self._at_ms - self._asked_ms >= EVERY_MS

    def take_verdicts(self) -> list[Verdicts]:
        """Everything that can be judged since the last call."""
        self._asked_ms = self._at_ms
        found: list[Verdicts] = []
        for name, pool in self._pools.items():
            judged = pool.hindsight.judge()
            if not judged and pool.over:
                pool.unjudged["model"] += sum(bool(decision.runs) for decision in pool.over.values())
            scale = pool.hindsight.scale
            pieces = [judged[start : start + AT_ONCE] for start in range(0, len(judged), AT_ONCE)]
            found += [self._verdicts(name, pool, piece, scale) for piece in pieces]
            pool.over.clear()
            pool.forget_before(self._at_ms - _LOST_MS)
            if pool.unjudged:
                if not judged:
                    found.append(
                        Verdicts(pool=name, at_ms=pool.at_ms, scale=scale, requests=[], choices=[], unjudged={})
                    )
                found[-1].unjudged.update(pool.unjudged)
                pool.unjudged.clear()
        return found

    def _verdicts(self, name: str, pool: _Pool, judged: Sequence[JudgedDecision[Key]], scale: Scale) -> Verdicts:
        verdicts = Verdicts(pool=name, at_ms=pool.at_ms, scale=scale, requests=[], choices=[], unjudged={})
        for each in judged:
            decision = pool.over[each.key]
            if decision.runs:
                verdicts.requests.append(_request(decision, each, verdicts.choices))
        return verdicts

    def _scheduled(self, event: RequestScheduled) -> None:
        runs = event.runs
        if not event.endpoints or not runs:
            return
        pool = self._pools.setdefault(event.pool, _Pool())
        key, worker = (event.edge, event.request_id), event.endpoints[0]
        known = pool.open.get(key)
        if known is not None and known.worker == worker:  # sent again: it keeps its reservation
            return
        primary = next((run for run in runs if run.profile == event.primary), runs[0])
        columns = primary.candidates
        workers, matched = columns.workers, columns.matched_tokens
        legs = event.legs
        if legs:
            # Another engine computes the prompt, so this one computes none of it.
            matched = [event.prompt_tokens] * len(workers)
            pool.unjudged["split"] += 1
            told: list[RunColumns] = []
        else:
            shadows = [run for run in runs if run is not primary and run.chosen]
            told = [_columns(run, worker if run is primary else run.chosen[0]) for run in (primary, *shadows)]
        bound = bool(event.bound_because)
        pool.open[key] = _Decision(
            request_id=event.request_id,
            edge=event.edge,
            at_ms=event.at_ms,
            runs=told,
            bound=bound,
            worker=worker,
        )
        pool.hindsight.add_decision(
            key,
            event.at_ms,
            event.prompt_tokens,
            workers,
            matched=matched,
            chosen=worker,
            told=event.stream,
        )

    def _started(self, event: ResponseStarted) -> None:
        pool = self._pools.get(event.pool)
        if pool is not None:
            pool.hindsight.started((event.source, event.request_id), event.at_ms)

    def _failed(self, event: AttemptFailed) -> None:
        pool, key = self._pools.get(event.pool), (event.source, event.request_id)
        if pool is None or event.leg:
            return  # the endpoint that answers stays
        decision = pool.open.get(key)
        if decision is not None and decision.runs:
            pool.unjudged["moved"] += 1
            pool.open[key] = decision._replace(runs=[])
        worker = event.next_worker
        if worker is None:
            pool.hindsight.ended(key, event.at_ms, None)
        else:
            pool.hindsight.moved(key, event.at_ms, worker)

    def _completed(self, event: ResponseCompleted) -> None:
        pool, key = self._pools.get(event.pool), (event.source, event.request_id)
        if pool is None:
            return
        usage = event.usage
        tokens = None
        if usage is not None and event.outcome == "ok":
            tokens = usage.completion_tokens // event.answers
        will_be_judged = pool.hindsight.ended(key, event.at_ms, tokens)
        pool.at_ms = max(pool.at_ms, event.at_ms)
        decision = pool.open.pop(key, None)
        if decision is None:
            pool.unjudged["unseen"] += event.outcome == "ok"
        elif will_be_judged:
            pool.over[key] = decision
        elif decision.runs:
            pool.unjudged["unanswered"] += 1


def _columns(run: ProfileRun, chosen: str) -> RunColumns:
    columns = run.candidates
    return RunColumns(
        profile=run.profile,
        chosen=chosen,
        weights=run.weights,
        scores=columns.scores,
        totals=columns.totals,
        filtered=columns.filtered,
    )


def _request(decision: _Decision, judged: JudgedDecision[Key], choices: list[tuple[str, str, int]]) -> JudgedRequest:
    """Also adds its choices to `choices`."""
    rows = {candidate.worker: row for row, candidate in enumerate(judged.candidates)}
    costs = judged.costs_us
    cheapest = sorted(rows, key=lambda worker: costs[rows[worker]])
    judged_choices: list[JudgedChoice] = []
    shown = cheapest[:_SHOWN]
    used: list[int] = []
    for run in decision.runs:
        chosen = rows[run.chosen]
        passed = [worker for worker in cheapest if worker not in run.filtered]
        best = rows[passed[0]] if passed else chosen
        if costs[chosen] <= costs[best]:
            best = chosen
        regret = costs[chosen] - costs[best]
        primary = run is decision.runs[0]
        why = reason(run, chosen, best, bound=decision.bound and primary) if regret else BEST
        choices.append((run.profile, why, regret))
        first = cheapest[0]
        gain = costs[best] - costs[rows[first]]
        removed_by = filter_of(run.filtered[first]) if first in run.filtered and gain > 0 else ""
        if removed_by:
            choices.append((run.profile, f"filter:{removed_by}", gain))
        judged_choices.append(
            JudgedChoice(
                profile=run.profile,
                worker=run.chosen,
                cost_us=costs[chosen],
                regret_us=regret,
                reason=why,
                filter=removed_by,
                filtered_us=gain if removed_by else 0,
            )
        )
        if run.chosen not in shown:
            shown.append(run.chosen)
        if primary:
            used = [chosen, *[rows[worker] for worker in passed if rows[worker] != chosen][:1]]
    return JudgedRequest(
        request_id=decision.request_id,
        edge=decision.edge,
        at_ms=decision.at_ms,
        prompt_tokens=judged.prompt,
        output_tokens=judged.output,
        costs_us={worker: costs[rows[worker]] for worker in shown},
        candidates=tuple(
            JudgedCandidate(
                worker=judged.candidates[row].worker,
                cost_us=costs[row],
                uncached_tokens=judged.candidates[row].uncached,
                came=judged.candidates[row].came,
                figures=tuple(judged.candidates[row].figures),
            )
            for row in used
        ),
        choices=tuple(judged_choices),
    )
