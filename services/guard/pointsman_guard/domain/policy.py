"""A compiled guard policy: detectors, and the actions on their findings."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from pydantic import JsonValue

from pointsman_contracts.guarding import Guarded
from pointsman_contracts.message import fields_of
from pointsman_core.config import DEFAULT_GUARD, Config, ConfigError, Guard
from pointsman_core.plugins import Gathering, PluginError, within
from pointsman_guard.domain.escapes import Readings
from pointsman_plugins.guarding import Checked, Detector, DetectorFailed, Finding, Outside
from pointsman_plugins.registry import Registry

RULES: Final = 7
"""Version of the built-in patterns and readings: raised when their findings change, and part of the epoch."""

Found = Sequence[Finding] | Awaitable[Sequence[Finding]]
Apart = Callable[[Callable[[Checked], Found], Checked], Awaitable[Found]]


class DetectorFailure(NamedTuple):
    """A detector failed."""

    detector: str
    problem: str

    def __str__(self) -> str:
        return f"{self.detector} {self.problem}"


@dataclass(frozen=True)
class Judgement:
    """A policy's judgement of some texts."""

    blocked: Finding | None = None
    """Why the texts are blocked."""
    redact: tuple[Finding, ...] = ()
    flagged: tuple[Finding, ...] = ()
    failures: tuple[DetectorFailure, ...] = ()

    @property
    def verdict(self) -> str:
        """`blocked`, `redacted`, `flagged` or `passed`."""
        if self.blocked is not None:
            return "blocked"
        return "redacted" if self.redact else "flagged" if self.flagged else "passed"

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories of the findings that aren't ignored, each once."""
        found = (*((self.blocked,) if self.blocked else ()), *self.redact, *self.flagged)
        return tuple(dict.fromkeys(finding.category for finding in found))


NOTHING: Final = Judgement()
"""Without findings."""


@dataclass(frozen=True)
class GuardPolicy:
    """One named guard."""

    name: str
    guard: Guard
    detectors: Sequence[Detector]
    epoch: str
    """12 hexadecimal digits; another value when any text may be judged differently."""

    @cached_property
    def passed_attribute(self) -> JsonValue:
        """The attribute for later stages about a prompt without findings."""
        return fields_of(Guarded(policy=self.name, epoch=self.epoch))

    @property
    def may_wait(self) -> bool:
        """Whether a detector may take longer than an edge waits for a sign of life."""
        return any(detector.waits for detector in self.detectors)

    @property
    def removable_categories(self) -> list[str]:
        """Categories that are redacted in answers."""
        known = (category for detector in self.detectors for category in detector.categories)
        return [category for category in known if self.guard.action_for(category, "response") == "redact"]

    async def judge_texts(
        self, checked: Checked, found: Sequence[Finding] = (), *, apart: Apart | None = None
    ) -> Judgement:
        """Like `judge_soon`, awaited."""
        judgement = self.judge_soon(checked, found, apart=apart)
        return await judgement if isinstance(judgement, Awaitable) else judgement

    def judge_soon(
        self,
        checked: Checked,
        found: Sequence[Finding] = (),
        *,
        but: Callable[[Finding], bool] | None = None,
        apart: Apart | None = None,
    ) -> Judgement | Awaitable[Judgement]:
        """Run the detectors in order, until one finds a reason to block; an awaitable when one of them waits. `found`:
        earlier findings. Findings for which `but` is true are ignored. `apart` runs the computation for long texts."""
        readings = Readings.all_of(checked.texts)
        if readings is not None:
            checked = Checked(checked.direction, checked.policy, checked.request_id, readings.texts)
        judging = _Judging(self.guard, checked, but, apart, readings)
        if found:
            judging.sort_findings(found)
        return judging.run(iter(self.detectors))


class _Judging:
    """Some texts during the run of a policy's detectors."""

    __slots__ = ("_apart", "_blocked", "_but", "_checked", "_failures", "_flagged", "_guard", "_readings", "_redact")

    def __init__(
        self,
        guard: Guard,
        checked: Checked,
        but: Callable[[Finding], bool] | None,
        apart: Apart | None,
        readings: Readings | None,
    ) -> None:
        self._guard = guard
        self._checked = checked
        self._but = but
        self._apart = apart
        self._readings = readings
        self._blocked: Finding | None = None
        self._redact: list[Finding] = []
        self._flagged: list[Finding] = []
        self._failures: list[DetectorFailure] = []

    def run(self, left: Iterator[Detector]) -> Judgement | Awaitable[Judgement]:
        """Run the remaining detectors."""
        for detector in left if self._blocked is None else ():
            try:
                found = (
                    detector.detect(self._checked)
                    if self._apart is None
                    else self._apart(detector.detect, self._checked)
                )
            except DetectorFailed as failure:
                self._failures.append(DetectorFailure(detector.name, str(failure)))
                continue
            if not isinstance(found, list) and isinstance(found, Awaitable):
                return self._resume(detector, found, left)
            if found:
                self._take_findings(found)
                if self._blocked is not None:
                    break
        if self._blocked is None and not (self._redact or self._flagged or self._failures):
            return NOTHING
        return Judgement(self._blocked, tuple(self._redact), tuple(self._flagged), tuple(self._failures))

    async def _resume(self, detector: Detector, waiting: Awaitable[Found], left: Iterator[Detector]) -> Judgement:
        try:
            found = await waiting
            self._take_findings(await found if isinstance(found, Awaitable) else found)
        except DetectorFailed as failure:
            self._failures.append(DetectorFailure(detector.name, str(failure)))
        judgement = self.run(left)
        return await judgement if isinstance(judgement, Awaitable) else judgement

    def _take_findings(self, found: Sequence[Finding]) -> None:
        but = self._but
        if self._readings is not None:
            found = self._readings.place_findings(found)
        self.sort_findings(found if but is None else [finding for finding in found if not but(finding)])

    def sort_findings(self, found: Sequence[Finding]) -> None:
        """Sort these findings by action."""
        for finding in found:
            action = self._guard.action_for(finding.category, self._checked.direction)
            # A finding without a place can't be removed.
            if action == "block" or (action == "redact" and not finding.located):
                self._blocked = finding
                return
            if action == "redact":
                self._redact.append(finding)
            elif action == "flag":
                self._flagged.append(finding)


def compile_policies(config: Config, registry: Registry[Detector], outside: Outside | None) -> dict[str, GuardPolicy]:
    """Every policy of the `guards` section, and `default`. Without an `outside`, they are checked but can't run, since
    models are on the guard's own disk. Raises ConfigError that names the detectors."""
    guards = {DEFAULT_GUARD: Guard(), **config.guards}
    epoch = _epoch(guards)
    policies: dict[str, GuardPolicy] = {}
    wrong = Gathering()
    for name, guard in guards.items():
        with wrong.collect_errors_below(name, "detectors"):
            detectors = registry.build([use.spec for use in guard.detectors])
            if outside is not None:
                for position, detector in enumerate(detectors):
                    with within(position):
                        detector.bind(outside)
            policies[name] = GuardPolicy(name, guard, detectors, epoch)
    try:
        wrong.raise_gathered()
    except PluginError as error:
        raise ConfigError.from_section("guards", error) from error
    return policies


def _epoch(guards: Mapping[str, Guard]) -> str:
    said = {name: guard.model_dump(mode="json") for name, guard in guards.items()}
    text = json.dumps([RULES, said], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
