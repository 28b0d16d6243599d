"""Judges decisions once their requests have ended: from events to `RequestsJudged`."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, NotRequired, TypedDict, cast

import orjson

from pointsman_contracts.response import AttemptFailed, ResponseCompleted, ResponseStarted
from pointsman_contracts.scheduling import RequestScheduled
from pointsman_delay.hindsight import Hindsight, JudgedDecision, Scale
from pointsman_recorder.domain.reasons import BEST, RunColumns, filter_of, reason

AT_ONCE: Final = 32
"""Requests in one message: below 64 KiB, with names of 60 characters too."""
EVERY_MS: Final = 1000
_LOST_MS: Final = 3_600_000
"""A request whose end didn't come in this time is forgotten."""
_SHOWN: Final = 8
"""Workers whose costs are published; the chosen ones besides."""

_SCHEDULED: Final = RequestScheduled.address.type_id
_STARTED: Final = ResponseStarted.address.type_id
_COMPLETED: Final = ResponseCompleted.address.type_id
_READ: Final = frozenset((_SCHEDULED, _STARTED, _COMPLETED, AttemptFailed.address.type_id))

Fields = dict[str, object]
"""Of a model of `pointsman_contracts.regret`: made only to be encoded."""


class Verdicts(NamedTuple):
    """Some judged requests of a pool: the content of a `RequestsJudged`."""

    pool: str
    at_ms: int
    scale: Scale
    requests: list[Fields]
    choices: list[tuple[str, str, int]]
    """Profile, reason and regret in microseconds of each choice, and of each filter that cost something."""
    unjudged: dict[str, int]

    def written(self, source: str, sequence: int, judge: str) -> bytes:
        """The message."""
        return orjson.dumps(
            {
                "source": source,
                "sequence": sequence,
                "at_ms": self.at_ms,
                "judge": judge,
                "pool": self.pool,
                "rates": list(self.scale.rates),
                "others": self.scale.others,
                "batch_tokens": self.scale.budget,
                "first_token_weight": self.scale.first_token,
                "requests": self.requests,
                "unjudged": self.unjudged,
            }
        )


Key = tuple[str, str]
"""Edge and request id."""


class _Columns(TypedDict):
    workers: list[str]
    matched_tokens: list[int]
    scores: dict[str, list[float | None]]
    totals: list[float | None]
    filtered: dict[str, str]


class _Run(TypedDict):
    profile: str
    chosen: list[str]
    weights: dict[str, float]
    candidates: _Columns


class _Scheduled(TypedDict):
    """The fields of `RequestScheduled` that are read; the others' likewise. Reading the models would cost three times
    as much."""

    request_id: str
    edge: str
    at_ms: int
    pool: str
    primary: str
    runs: list[_Run]
    endpoints: list[str]
    prompt_tokens: int
    legs: NotRequired[dict[str, str]]
    stream: NotRequired[bool]
    bound_because: NotRequired[str]


class _Started(TypedDict):
    request_id: str
    source: str
    at_ms: int
    pool: str


class _Failed(_Started):
    next_worker: NotRequired[str]
    leg: NotRequired[str]


class _Usage(TypedDict):
    completion_tokens: int


class _Completed(_Started):
    outcome: str
    usage: NotRequired[_Usage]
    answers: NotRequired[int]


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

    def forget(self, before_ms: int) -> None:
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

    def judge_event(self, kind: str, body: bytes) -> None:
        """One event, of any type. Raises ValueError, KeyError or TypeError for one that can't be read."""
        if kind not in _READ:
            return
        event: object = orjson.loads(body)
        self._at_ms = max(self._at_ms, cast("_Started", event)["at_ms"])
        if kind == _SCHEDULED:
            self._scheduled(cast("_Scheduled", event))
        elif kind == _STARTED:
            self._started(cast("_Started", event))
        elif kind == _COMPLETED:
            self._completed(cast("_Completed", event))
        else:
            self._failed(cast("_Failed", event))

    @property
    def due(self) -> bool:
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
            pool.forget(self._at_ms - _LOST_MS)
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

    def _scheduled(self, event: _Scheduled) -> None:
        runs = event["runs"]
        if not event["endpoints"] or not runs:
            return
        pool = self._pools.setdefault(event["pool"], _Pool())
        key, worker = (event["edge"], event["request_id"]), event["endpoints"][0]
        known = pool.open.get(key)
        if known is not None and known.worker == worker:  # sent again: it keeps its reservation
            return
        primary = next((run for run in runs if run["profile"] == event["primary"]), runs[0])
        columns = primary["candidates"]
        workers, matched = columns["workers"], columns["matched_tokens"]
        legs = event.get("legs")
        if legs:
            # Another engine computes the prompt, so this one computes none of it.
            matched = [event["prompt_tokens"]] * len(workers)
            pool.unjudged["split"] += 1
            told: list[RunColumns] = []
        else:
            shadows = [run for run in runs if run is not primary and run["chosen"]]
            told = [_columns(run, worker if run is primary else run["chosen"][0]) for run in (primary, *shadows)]
        bound = bool(event.get("bound_because"))
        pool.open[key] = _Decision(
            request_id=event["request_id"],
            edge=event["edge"],
            at_ms=event["at_ms"],
            runs=told,
            bound=bound,
            worker=worker,
        )
        pool.hindsight.add_decision(
            key,
            event["at_ms"],
            event["prompt_tokens"],
            workers,
            matched=matched,
            chosen=worker,
            told=event.get("stream", True),
        )

    def _started(self, event: _Started) -> None:
        pool = self._pools.get(event["pool"])
        if pool is not None:
            pool.hindsight.started((event["source"], event["request_id"]), event["at_ms"])

    def _failed(self, event: _Failed) -> None:
        pool, key = self._pools.get(event["pool"]), (event["source"], event["request_id"])
        if pool is None or event.get("leg"):
            return  # the endpoint that answers stays
        decision = pool.open.get(key)
        if decision is not None and decision.runs:
            pool.unjudged["moved"] += 1
            pool.open[key] = decision._replace(runs=[])
        worker = event.get("next_worker")
        if worker is None:
            pool.hindsight.ended(key, event["at_ms"], None)
        else:
            pool.hindsight.moved(key, event["at_ms"], worker)

    def _completed(self, event: _Completed) -> None:
        pool, key = self._pools.get(event["pool"]), (event["source"], event["request_id"])
        if pool is None:
            return
        usage = event.get("usage")
        tokens = None
        if usage is not None and event["outcome"] == "ok":
            tokens = usage["completion_tokens"] // event.get("answers", 1)
        will_be_judged = pool.hindsight.ended(key, event["at_ms"], tokens)
        pool.at_ms = max(pool.at_ms, event["at_ms"])
        decision = pool.open.pop(key, None)
        if decision is None:
            pool.unjudged["unseen"] += event["outcome"] == "ok"
        elif will_be_judged:
            pool.over[key] = decision
        elif decision.runs:
            pool.unjudged["unanswered"] += 1


def _columns(run: _Run, chosen: str) -> RunColumns:
    columns = run["candidates"]
    return RunColumns(
        profile=run["profile"],
        chosen=chosen,
        weights=run["weights"],
        scores=columns["scores"],
        totals=columns["totals"],
        filtered=columns["filtered"],
    )


def _request(decision: _Decision, judged: JudgedDecision[Key], choices: list[tuple[str, str, int]]) -> Fields:
    """Like `JudgedRequest`; adds its choices to `choices`."""
    rows = {candidate.worker: row for row, candidate in enumerate(judged.candidates)}
    costs = judged.costs_us
    cheapest = sorted(rows, key=lambda worker: costs[rows[worker]])
    told: list[Fields] = []
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
        choice: Fields = {
            "profile": run.profile, "worker": run.chosen, "cost_us": costs[chosen], "regret_us": regret, "reason": why
        }  # fmt: skip
        choices.append((run.profile, why, regret))
        first = cheapest[0]
        gain = costs[best] - costs[rows[first]]
        if first in run.filtered and gain > 0:
            choice |= {"filter": filter_of(run.filtered[first]), "filtered_us": gain}
            choices.append((run.profile, f"filter:{choice['filter']}", gain))
        told.append(choice)
        if run.chosen not in shown:
            shown.append(run.chosen)
        if primary:
            used = [chosen, *[rows[worker] for worker in passed if rows[worker] != chosen][:1]]
    return {
        "request_id": decision.request_id,
        "edge": decision.edge,
        "at_ms": decision.at_ms,
        "prompt_tokens": judged.prompt,
        "output_tokens": judged.output,
        "costs_us": {worker: costs[rows[worker]] for worker in shown},
        "candidates": [
            {
                "worker": judged.candidates[row].worker,
                "cost_us": costs[row],
                "uncached_tokens": judged.candidates[row].uncached,
                "came": judged.candidates[row].came,
                "figures": list(judged.candidates[row].figures),
            }
            for row in used
        ],
        "choices": told,
    }
