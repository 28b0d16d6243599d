"""The laws that every cell of the matrix asserts. Pure: evidence in, broken laws out."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from pointsman_testing.unruly.asking import PATIENCE_S, ClientOutcome
from pointsman_testing.unruly.cells import Cell
from pointsman_testing.unruly.engine import EngineWork
from pointsman_testing.unruly.ground import Records
from pointsman_testing.unruly.rows import GROUPS, ROWS, RowKind

LAWS: Final[dict[str, str]] = {
    "L1": "No client sees an error while a good engine is there, except for answers already begun at the bad one.",
    "L2": "The bad engine's share is at most trials within 5 s, and it has its share back within 10 s of being good.",
    "L3": "With all engines bad alike, nothing is worse than passing requests through by round-robin.",
    "L4": "No running work is ended by a signal; no request starts more than twice.",
    "L5": "There is one ledger record and one completed event for each request.",
    "L6": "`pointsman doctor` names the engine and why.",
}
LEARNT_S: Final = 5.0
"""After this time a bad engine's share is at most trials."""
BACK_S: Final = 10.0
"""Within this time an engine that is good again has its share."""
TRIALS_PER_S: Final = 1.0
"""Most trial requests of one engine."""
MOVED_S: Final = 6.0
"""With a good engine there, a request that the bad one swallows is answered within this time."""
NOTICED_S: Final = 0.5
"""An engine's first byte may pass the abort of its request on the way."""
PROMPT_S: Final = 5.0
"""With all engines bad alike, an error that an engine gives at once reaches the client within this time."""
UNREACHED_S: Final = 10.0
"""The same where no engine says anything: connecting to each may take `edge.connect_timeout`."""
ROOM: Final = 0.05
"""Part of the requests by which ours may be behind a round-robin's: each counts which of them are served."""

UNLUCKY: Final = 0.02
"""Part of the clients that may see an error where as many engines go bad at once as a request may try: at least one."""
UNKNOWN_S: Final = 2.0
"""So long after engines went bad at once, the gateway may not know any of them: a request meets bad ones alone by
chance."""
NAMED: Final = 4
"""Endpoints that a decision names, the most that Envoy tries."""
ANSWERED: Final = 3
"""Engines that may answer a request at the frontend with an error, other than that they are busy."""
BAD_REQUEST: Final = 400
"""Usually the client's fault. Behind Envoy its client has it, until the engine is ejected."""
OPINIONS: Final = 2
"""Engines that are asked about such an error."""
BEGUN: Final = 2
"""Engines that may have begun a request: law L4."""


class Evidence(msgspec.Struct):
    """All that one cell left behind; times are of `time.monotonic()`."""

    cell: Cell
    bad_at: float
    good_at: float
    asked: Sequence[ClientOutcome]
    work: Mapping[str, Sequence[EngineWork]]
    """By engine."""
    back_s: float | None
    """How long after `good_at` the engines had their share again; None: not within `BACK_S`."""
    doctor: str | None
    """The diagnosis while the engines misbehaved; None: there is none to be had."""
    records: Records | None
    """None: none are kept."""


WITHIN_ANSWERS: Final = GROUPS["stops within answers"]
"""Behind Envoy, the engine of an answer that stops without an end isn't always named within 5 s."""
UNANSWERED: Final = tuple(row for row in ROWS if row.name.startswith("hangs before the head"))
"""An only engine has no peers whose answers show that it should have answered."""


def broken(evidence: Evidence) -> list[str]:
    """Each broken law, with the figures that show it."""
    found = [*_served(evidence), *_share(evidence), *_work(evidence), *_records(evidence), *_doctor(evidence)]
    excused = _excused(evidence.cell)
    return sorted(words for words in found if words[:2] not in excused)


def _excused(cell: Cell) -> frozenset[str]:
    """The laws that aren't kept in this cell yet; docs/failure-levels.md says so."""
    if cell.place.door == "envoy" and cell.row in WITHIN_ANSWERS:
        return frozenset({"L6"})
    if cell.place.engines == 1 and cell.row in UNANSWERED:
        return frozenset({"L6"})
    if cell.place.door == "envoy" and cell.row.behaviour.status == BAD_REQUEST:
        return frozenset({"L1"})
    return frozenset()


def _tries(cell: Cell) -> int | None:
    """How many engines that misbehave so may be asked for one request; None: every one."""
    row, behaviour = cell.row, cell.row.behaviour
    if row.kind is not RowKind.FAILS and row.restart_s is None:
        return None
    if cell.place.door == "envoy":
        return NAMED
    swallows = behaviour.hang or behaviour.frozen or not behaviour.accepts
    if row.restart_s is not None or behaviour.cut or behaviour.garbage or swallows:
        return BEGUN
    if behaviour.status == BAD_REQUEST:
        return OPINIONS
    answers_errors = behaviour.models is not None or behaviour.status not in (200, 429, 503, 529)
    return ANSWERED if answers_errors else None


def _unlucky(evidence: Evidence, asked: Sequence[ClientOutcome]) -> int:
    """How many of these clients may see an error, or wait for long, as each engine that their requests may try can be
    a bad one; docs/failure-levels.md says so."""
    cell, tries = evidence.cell, _tries(evidence.cell)
    if cell.all_bad or tries is None or cell.bad < tries:
        return 0
    chance = math.prod((cell.bad - tried) / (cell.place.engines - tried) for tried in range(tries))
    first = sum(evidence.bad_at <= one.sent < evidence.bad_at + UNKNOWN_S for one in asked)
    return max(1, int(UNLUCKY * len(asked) + chance * first))


def _served(evidence: Evidence) -> Iterator[str]:
    cell, row = evidence.cell, evidence.cell.row
    during = [one for one in evidence.asked if evidence.bad_at <= one.sent < evidence.good_at]
    if cell.all_bad and (row.passes < 1 or row.restart_s is not None):
        share = sum(one.whole for one in during) / max(1, len(during))
        due = 0.0 if row.restart_s is not None else row.passes - ROOM
        if share < due:
            yield f"L3: {share:.0%} of {len(during)} served, round-robin {row.passes:.0%}; {_errors(during)}"
        within_s = PROMPT_S if row.behaviour.accepts else UNREACHED_S
        late = [one for one in during if not one.whole and one.took > within_s]
        if late:
            yield f"L3: {len(late)} of {len(during)} errors took over {within_s:g} s; {_errors(late)}"
        others = [one for one in evidence.asked if one not in during and one.sent < evidence.bad_at - 0.5]
    else:
        others = evidence.asked
    bad = set(cell.bad_workers)
    at_bad = [work for name, all_of_it in evidence.work.items() if name in bad for work in all_of_it if work.started]
    there = {work.request for work in at_bad}
    begun_there = {work.request for work in at_bad if work.head is not None}
    # Envoy tries nothing again once it has the head of an answer, even where its client hasn't.
    begun = [one.begun or (cell.place.door == "envoy" and one.request in begun_there) for one in others]
    failed = [
        one for one, begun in zip(others, begun, strict=True) if not one.whole and not (begun and one.request in there)
    ]
    if len(failed) > _unlucky(evidence, others):
        law = "L3" if cell.all_bad else "L1"
        yield f"{law}: {len(failed)} of {len(others)} clients failed; {_errors(failed)}"
    waited = [one for one in others if one.whole and one.took > MOVED_S and one.request not in begun_there]
    if row.kind is RowKind.FAILS and not cell.all_bad and len(waited) > _unlucky(evidence, others):
        longest = max(one.took for one in waited)
        yield f"L1: {len(waited)} of {len(others)} clients waited over {MOVED_S:g} s, the longest {longest:.1f} s"


def _errors(asked: Sequence[ClientOutcome]) -> str:
    """The most frequent statuses and one example."""
    statuses = Counter(one.status for one in asked if not one.whole)
    example = next((one for one in asked if not one.whole), None)
    words = ", ".join(f"{count} × {status}" for status, count in statuses.most_common(4))
    return f"{words}; e.g. {example.request} after {example.took:.1f} s: {example.problem[:160]}" if example else words


def _share(evidence: Evidence) -> Iterator[str]:
    cell, row = evidence.cell, evidence.cell.row
    since, until = evidence.bad_at + LEARNT_S, evidence.good_at
    if row.kind in (RowKind.FAILS, RowKind.LEAVES) and not cell.all_bad and until > since:
        most = TRIALS_PER_S * (until - since) + 1
        for name in cell.bad_workers:
            got = sum(since <= work.began < until for work in evidence.work[name])
            if got > most:
                yield f"L2: {name} got {got} requests from 5 s to {until - evidence.bad_at:.0f} s; trials: {most:.0f}"
    if evidence.back_s is None:
        last = {name: sum(w.began > evidence.good_at for w in evidence.work[name]) for name in cell.place.workers}
        yield f"L2: no share again within {BACK_S:g} s of being good; starts since then: {last}"


def _work(evidence: Evidence) -> Iterator[str]:
    cell = evidence.cell
    every = [(name, work) for name, all_of_it in evidence.work.items() for work in all_of_it]
    starts = Counter(work.request for name, work in every if work.started and not _swallowed(evidence, name, work))
    often = {request: count for request, count in starts.items() if count > 2}
    if often:
        yield f"L4: {len(often)} requests started more than twice, e.g. {next(iter(often.items()))}"
    gave_up = {one.request for one in evidence.asked if one.took >= PATIENCE_S}
    ended = [(name, work) for name, work in every if work.end == "aborted" and work.request not in gave_up]
    if cell.row.only_signals and cell.row.restart_s is None:
        if ended:
            yield f"L4: {len(ended)} running requests aborted, e.g. {ended[0][1].request} at {ended[0][0]}"
        return
    answered = {work.request for name, work in every if work.end == "done" and name in cell.bad_workers}
    good = [
        (name, work)
        for name, work in ended
        # Envoy lets both engines that it tried go on until the first of them answers, which may be the bad one.
        if name not in cell.bad_workers and not (cell.place.door == "envoy" and work.request in answered)
    ]
    if good:
        yield f"L4: {len(good)} requests aborted at good engines, e.g. {good[0][1].request} at {good[0][0]}"
    if cell.row.kind is RowKind.SLOW:
        begun = [
            (name, work)
            for name, work in ended
            if work.first_byte is not None and (work.ended or 0.0) - work.first_byte > NOTICED_S
        ]
        if begun:
            yield f"L4: {len(begun)} begun answers aborted at a slow engine, e.g. {begun[0][1].request}"


def _swallowed(evidence: Evidence, name: str, work: EngineWork) -> bool:
    """Whether Envoy tried a request again elsewhere that a bad engine had swallowed, if not for good. It knows no
    verdict on the engine that it tries next, and lets both go on: the first answer wins. docs/failure-levels.md says
    so."""
    cell = evidence.cell
    silent = work.head is None or work.head >= evidence.good_at
    hangs = cell.row.behaviour.hang == "head" or cell.row.behaviour.frozen
    return cell.place.door == "envoy" and hangs and name in cell.bad_workers and silent


def _records(evidence: Evidence) -> Iterator[str]:
    records = evidence.records
    for what, counts in () if records is None else zip(("completed events", "ledger records"), records, strict=True):
        wrong = Counter(counts.get(one.request, 0) for one in evidence.asked)
        wrong.pop(1, None)
        if wrong:
            example = next(one for one in evidence.asked if counts.get(one.request, 0) != 1)
            words = ", ".join(f"{count} requests with {number}" for number, count in wrong.items())
            yield f"L5: {what}: {words} of {len(evidence.asked)}, e.g. {example.request} (status {example.status})"


def _doctor(evidence: Evidence) -> Iterator[str]:
    row = evidence.cell.row
    if not row.told or evidence.doctor is None or (row.clients and evidence.cell.all_bad):
        return
    # Envoy doesn't tell the adapter which status an attempt had that it tried again elsewhere.
    told = rf"{row.told}|failed" if evidence.cell.place.door == "envoy" else row.told
    for name in evidence.cell.bad_workers:
        named = [finding for finding in findings(evidence.doctor) if re.search(rf"\b{name}\b", finding)]
        if not named:
            yield f"L6: doctor doesn't name {name}"
        elif not any(re.search(told, finding, re.IGNORECASE) for finding in named):
            yield f"L6: doctor names {name} without the reason ({told}): {named[0][:200]}"


def findings(output: str) -> list[str]:
    """The warnings and failures that doctor printed, each in one line with its advice."""
    found: list[str] = []
    for line in output.splitlines():
        words = line.strip()
        if words.startswith(("✓", "!", "✗")):
            found.append(words)
        elif words and found:
            found[-1] += " " + words
    return [finding for finding in found if not finding.startswith("✓")]
