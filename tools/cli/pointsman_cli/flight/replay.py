"""Flight logs, replayed: what differs, why, and the reports for people and for CI."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, cast
from xml.etree import ElementTree

import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from pointsman_cli.command_line import print_wrapped
from pointsman_cli.flight.log_reading import gaps, log_errors, progress_through
from pointsman_cli.words import CommandError, counted
from pointsman_core.config import ConfigError, SchedulingPolicy
from pointsman_core.plugins import PluginError
from pointsman_flight.reader import Flight, LoggedRecord, open_log
from pointsman_flight.records import Decided
from pointsman_runtime.configuring.config_text import parse
from pointsman_scheduler.domain.policy import compile_policy
from pointsman_scheduler.flight.following import FollowingReplay, NotComparedError, why_other
from pointsman_scheduler.flight.replay import FlightReplay
from pointsman_scheduler.flight.segments import platform_facts
from pointsman_scheduler.plugins import registries

_BETWEEN: Final = 5
"""Inputs that are named before the first difference."""


class ReplayArguments(NamedTuple):
    """The command's arguments."""

    logs: tuple[Path, ...]
    policy: Path | None
    config: Path | None
    allow: float
    """Share of decisions that may differ."""
    junit: Path | None
    show: int
    as_json: bool


@dataclass
class Result:
    """The replay of one flight."""

    pool: str
    scheduler: str
    decisions: int = 0
    compared: int = 0
    """Decisions that were compared: all of an exact replay; otherwise not those by which requests began to wait for
    their engine, nor, under the recorded policies, those by which they left."""
    different: int = 0
    reasons: Counter[str] = field(default_factory=Counter[str])
    examples: list[str] = field(default_factory=list[str])
    first: str = ""
    """The first difference of an exact replay, with its place; empty when there is none."""
    notes: list[str] = field(default_factory=list[str])
    """The gaps of the log, and tails that were cut."""

    @property
    def differing_share(self) -> float:
        """The share of compared decisions that differ."""
        return self.different / self.compared if self.compared else 0.0


def replay(wanted: ReplayArguments, console: Console) -> bool:
    """Print what differs. False when that is more than allowed."""
    with log_errors():
        results: list[Result] = []
        for flight in open_log(wanted.logs):
            settings = _settings(wanted, flight.pool)
            results.append(_compared(flight, wanted, *settings) if settings else _exact(flight, wanted))
    allowed = all(
        result.differing_share <= wanted.allow and (not result.first or wanted.allow > 0) for result in results
    )
    if wanted.junit is not None:
        wanted.junit.write_bytes(_junit(results, wanted.allow))
    if wanted.as_json:
        console.print(json.dumps([_document(result) for result in results]), soft_wrap=True, markup=False)
    else:
        for result in results:
            for line in _lines(result, wanted):
                print_wrapped(console, Text(line))
    return allowed


def _settings(wanted: ReplayArguments, pool: str) -> tuple[str, SchedulingPolicy] | None:
    """The other policy for this pool. CommandError when it can't be used."""
    try:
        if wanted.policy is not None:
            document = cast("object", yaml.safe_load(wanted.policy.read_text(encoding="utf-8")))
            found = wanted.policy.stem, SchedulingPolicy.model_validate(document or {})
        elif wanted.config is not None:
            config = parse(wanted.config.read_text(encoding="utf-8"))
            if pool not in config.pools:
                raise CommandError(f"{wanted.config} has no pool {pool!r}.", "The log's pool must be in it.")
            name = config.pools[pool].scheduling
            found = name, config.scheduling[name]
        else:
            return None
        compile_policy(*found, registries())
    except OSError as error:
        raise CommandError(f"{error.filename}: {(error.strerror or str(error)).lower()}.") from error
    except (ConfigError, PluginError, ValidationError, yaml.YAMLError) as error:
        raise CommandError(f"{wanted.policy or wanted.config}: {error}") from error
    return found


def _exact(flight: Flight, wanted: ReplayArguments) -> Result:
    """Replay from the inputs alone; where that differs, count the decisions that this version makes otherwise."""
    result = Result(flight.pool, flight.scheduler)
    replaying = FlightReplay(flight, registries())
    since: list[LoggedRecord] = []
    agreed = 0
    with progress_through([flight], f"replaying {flight.pool}") as told:
        for step in replaying.run():
            logged = step.logged
            told(logged)
            result.decisions += isinstance(logged.record, Decided)
            if step.difference:
                result.first = _place(logged, step.difference, agreed, since)
                break
            if isinstance(logged.record, Decided):
                since, agreed = [], logged.number
            else:
                since.append(logged)
                del since[:-_BETWEEN]
    result.compared = result.decisions
    if result.first:
        followed = _compared(flight, wanted)
        followed.first = result.first
        followed.notes += _platform_notes(flight)
        return followed
    result.notes += gaps(flight)
    return result


def _compared(
    flight: Flight, wanted: ReplayArguments, name: str = "", settings: SchedulingPolicy | None = None
) -> Result:
    """Replay with this version and policy, each decision on the recorded state."""
    result = Result(flight.pool, flight.scheduler)
    replaying = FollowingReplay(flight, registries(), name, settings)
    with progress_through([flight], f"comparing {flight.pool}") as told:
        for step in replaying.run():
            told(step.logged)
            record = step.logged.record
            if not isinstance(record, Decided) or step.outcome is None:
                continue
            result.decisions += 1
            result.compared += not isinstance(step.outcome, NotComparedError)
            if step.difference:
                other = why_other(record.outcome, step.outcome)
                result.different += 1
                result.reasons[other.reason] += 1
                if len(result.examples) < wanted.show:
                    result.examples.append(f"{record.request_id} (input {step.logged.number}): {other.words}")
    result.notes += gaps(flight)
    return result


def _place(logged: LoggedRecord, difference: str, agreed: int, since: Sequence[LoggedRecord]) -> str:
    between = ", ".join(f"{each.number} {type(each.record).__name__}" for each in since)
    return (
        f"{logged.segment.path.name}, input {logged.number} ({type(logged.record).__name__}): {difference}. "
        f"The states agreed at input {agreed}" + (f"; since then: {between}" if between else "")
    )


def _platform_notes(flight: Flight) -> list[str]:
    here, there = platform_facts(), flight.segments[0].header.platform
    other = [f"{name} {there[name]}, here {here.get(name)}" for name in there if there[name] != here.get(name)]
    return [f"recorded with {'; '.join(other)}: the last digits of scores may differ by that"] if other else []


def _lines(result: Result, wanted: ReplayArguments) -> Iterator[str]:
    yield f"pool {result.pool}, scheduler {result.scheduler}: {counted(result.decisions, 'decision')}"
    if result.first:
        yield f"  the replay differs first at {result.first}"
    if wanted.policy is None and wanted.config is None and not result.first:
        yield "  every decision is the same, bit for bit"
    else:
        yield (
            f"  {counted(result.different, 'decision')} of {result.compared:,} would differ "
            f"({result.differing_share:.2%}), each judged on the state that really was"
        )
    for reason, count in result.reasons.most_common():
        yield f"    {count:>8,}  {reason}"
    for example in result.examples:
        yield f"    {example}"
    for note in result.notes:
        yield f"  {note}"


def _document(result: Result) -> dict[str, object]:
    return {
        "pool": result.pool,
        "scheduler": result.scheduler,
        "decisions": result.decisions,
        "compared": result.compared,
        "different": result.different,
        "share": result.differing_share,
        "first_difference": result.first or None,
        "reasons": dict(result.reasons.most_common()),
        "examples": result.examples,
        "notes": result.notes,
    }


def _junit(results: Sequence[Result], allow: float) -> bytes:
    suite = ElementTree.Element("testsuite", name="pointsman replay", tests=str(len(results)))
    failures = 0
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=f"replay.{result.pool}", name=result.scheduler)
        reasons = "\n".join(f"{count} {reason}" for reason, count in result.reasons.most_common())
        if result.differing_share > allow or (result.first and allow == 0):
            failures += 1
            share = f"{result.differing_share:.2%}, allowed {allow:.2%}"
            words = f"{result.different} of {result.compared} decisions differ ({share})"
            failure = ElementTree.SubElement(case, "failure", message=words)
            failure.text = "\n".join([result.first, reasons, *result.examples])
        output = ElementTree.SubElement(case, "system-out")
        output.text = "\n".join([f"{result.decisions} decisions", reasons, *result.notes])
    suite.set("failures", str(failures))
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
