"""A guard policy, ready to run: detectors, and what becomes of what they find."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pointsman_core.config import DEFAULT_GUARD, Config, ConfigError, Guard
from pointsman_core.plugins import PluginError, Registry
from pointsman_guard.domain.checking import Checked, Detector, DetectorFailed, Finding, Outside

RULES: Final = 1
"""Number of the built-in patterns and readings: raised when they change what is found, and part of the epoch."""

Found = Sequence[Finding] | Awaitable[Sequence[Finding]]
Apart = Callable[[Callable[[Checked], Found], Checked], Awaitable[Found]]


@dataclass(frozen=True)
class Judgement:
    """What a policy says about some texts."""

    blocked: Finding | None = None
    """Why they go no further."""
    redact: tuple[Finding, ...] = ()
    flagged: tuple[Finding, ...] = ()
    failures: tuple[str, ...] = ()
    """Detectors that couldn't say anything, and why."""

    @property
    def verdict(self) -> str:
        """`blocked`, `redacted`, `flagged` or `passed`."""
        if self.blocked is not None:
            return "blocked"
        return "redacted" if self.redact else "flagged" if self.flagged else "passed"

    @property
    def categories(self) -> tuple[str, ...]:
        """What was found and isn't ignored, each once."""
        found = (*((self.blocked,) if self.blocked else ()), *self.redact, *self.flagged)
        return tuple(dict.fromkeys(finding.category for finding in found))


@dataclass(frozen=True)
class Policy:
    """One named guard."""

    name: str
    guard: Guard
    detectors: Sequence[Detector]
    epoch: str
    """12 hexadecimal digits; another one when anything may be judged otherwise."""

    @property
    def waits(self) -> bool:
        """Whether a detector may take longer than an edge waits without a word."""
        return any(detector.waits for detector in self.detectors)

    @property
    def removable(self) -> list[str]:
        """Categories that are redacted in answers."""
        known = (category for detector in self.detectors for category in detector.categories)
        return [category for category in known if self.guard.action(category, "response") == "redact"]

    async def judge(
        self,
        checked: Checked,
        found: Sequence[Finding] = (),
        *,
        but: Callable[[Finding], bool] | None = None,
        apart: Apart | None = None,
    ) -> Judgement:
        """Ask the detectors in order, until one finds what blocks. `found` is known already; what `but` is true of
        doesn't count. `apart` runs what computes, for texts that take long."""
        redact: list[Finding] = []
        flagged: list[Finding] = []
        failures: list[str] = []
        blocked = self._sort(found, checked, redact, flagged)
        for detector in self.detectors:
            if blocked is not None:
                break
            try:
                result = detector.detect(checked) if apart is None else await apart(detector.detect, checked)
                findings = await result if isinstance(result, Awaitable) else result
            except DetectorFailed as failure:
                failures.append(f"{detector.name} {failure}")
                continue
            if but is not None:
                findings = [finding for finding in findings if not but(finding)]
            blocked = self._sort(findings, checked, redact, flagged)
        return Judgement(blocked, tuple(redact), tuple(flagged), tuple(failures))

    def _sort(
        self, findings: Sequence[Finding], checked: Checked, redact: list[Finding], flagged: list[Finding]
    ) -> Finding | None:
        for finding in findings:
            action = self.guard.action(finding.category, checked.direction)
            # What stands nowhere in particular can't be taken out.
            if action == "block" or (action == "redact" and not finding.located):
                return finding
            if action == "redact":
                redact.append(finding)
            elif action == "flag":
                flagged.append(finding)
        return None


def compile_policies(config: Config, registry: Registry[Detector], outside: Outside | None) -> dict[str, Policy]:
    """Every policy of the `guards` section, and `default`. Without an `outside` they are checked, and can't run: models
    are on the guard's own disk. Raises ConfigError that names the detector."""
    guards = {DEFAULT_GUARD: Guard(), **config.guards}
    epoch = _epoch(guards)
    policies: dict[str, Policy] = {}
    for name, guard in guards.items():
        try:
            detectors = registry.build([use.spec for use in guard.detectors])
            if outside is not None:
                for detector in detectors:
                    detector.bind(outside)
        except PluginError as error:
            raise ConfigError.at(f"guards.{name}.detectors", error) from error
        policies[name] = Policy(name, guard, detectors, epoch)
    return policies


def _epoch(guards: Mapping[str, Guard]) -> str:
    said = {name: guard.model_dump(mode="json") for name, guard in guards.items()}
    text = json.dumps([RULES, said], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
