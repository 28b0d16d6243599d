"""The findings of `pointsman doctor` about services. Pure."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from pointsman_cli.config.needed_services import missing_services
from pointsman_cli.doctor.facts import Facts, Heard
from pointsman_cli.doctor.finding import DiagnosisLine, fail, ok, warn
from pointsman_contracts.generation import Generations
from pointsman_contracts.presence import ServicePresence
from pointsman_contracts.services import EDGES

SKEW_WARNING_MS: Final = 250.0
"""Deadlines travel as wall-clock times; a hop's is 600 ms."""
SKEW_FAILURE_MS: Final = 600.0
FEW_DESCRIPTORS: Final = 4096


def services(facts: Facts) -> Iterator[DiagnosisLine]:
    """The services heard, those missing, and the configuration of each."""
    by_service: dict[str, list[ServicePresence]] = {}
    for heard in facts.services:
        by_service.setdefault(heard.presence.service, []).append(heard.presence)
    for service in sorted(by_service):
        yield from _instances(service, by_service[service], facts.revision)
    for problem, advice in () if facts.config is None else missing_services(facts.config, by_service):
        yield fail(problem, advice)
    if not by_service.keys() & set(EDGES):
        yield fail(
            "neither a frontend nor an epp-adapter is heard: no request can enter",
            "Start one: pointsman-frontend, or pointsman-epp-adapter behind an Envoy.",
        )
    if "recorder" not in by_service:
        yield warn(
            "no recorder is heard: usage isn't counted, and events are kept by the stream alone",
            "Start one: pointsman-recorder. It reads what the stream has kept meanwhile.",
        )
    versions = {presence.version for members in by_service.values() for presence in members}
    if len(versions) > 1:
        yield warn(f"several versions run: {', '.join(sorted(versions))}", "Fine during an upgrade; finish it.")


def contracts(services: Sequence[Heard]) -> Iterator[DiagnosisLine]:
    """Whether the services' contract versions fit together."""
    speakers: dict[Generations, list[ServicePresence]] = {}
    for heard in services:
        speakers.setdefault(Generations(*heard.presence.contracts), []).append(heard.presence)
    for one, other in combinations(sorted(speakers), 2):
        if not one.is_compatible_with(other):
            sides = [
                f"{', '.join(sorted({f'{presence.service} {presence.version}' for presence in speakers[side]}))} "
                f"(generation {side})"
                for side in (one, other)
            ]
            yield fail(
                f"these share no generation of the contracts: {' and '.join(sides)}",
                "Those that started later don't become ready. Stop one side, or run a version that speaks both.",
            )


def descriptors(services: Sequence[Heard]) -> Iterator[DiagnosisLine]:
    """Edges that may have few connections open: each request takes two."""
    for heard in services:
        presence, allowed = heard.presence, heard.presence.descriptors
        if presence.service in EDGES and allowed is not None and allowed < FEW_DESCRIPTORS:
            yield warn(
                f"{presence.service} {presence.instance} may have {allowed} files and connections open at a time: "
                f"about {allowed // 2} requests",
                "Raise the hard limit of its process: `ulimit -Hn`, LimitNOFILE= of systemd, or `ulimits` of Docker.",
            )


def _instances(service: str, members: Sequence[ServicePresence], revision: int) -> Iterator[DiagnosisLine]:
    ready = [presence for presence in members if presence.ready]
    named = f"{service}: {len(ready)} of {len(members)} ready" if len(members) > 1 else f"{service}: one"
    versions = ", ".join(sorted({presence.version for presence in members}))
    if not ready:
        yield fail(f"{service}: none of {len(members)} is ready", "Its /ready says why.")
    elif len(ready) < len(members):
        yield warn(f"{named}, version {versions}", "The others are starting or draining; their /ready says which.")
    else:
        yield ok(f"{named}, version {versions}")
    behind = sorted({presence.revision for presence in ready if 0 < presence.revision < revision})
    if behind:
        yield warn(
            f"{service} runs configuration revision {', '.join(map(str, behind))}, not {revision}",
            "Its log says why it refused the newer one (config_refused).",
        )


def clocks(services: Sequence[Heard]) -> Iterator[DiagnosisLine]:
    """The largest difference between clocks."""
    worst = max(services, key=lambda heard: abs(heard.skew_ms), default=None)
    if worst is None:
        return
    who = f"{worst.presence.service} {worst.presence.instance}"
    words = f"the clock of {who} is {abs(worst.skew_ms):.0f} ms {'ahead' if worst.skew_ms > 0 else 'behind'}"
    advice = "Run a time service (chrony, systemd-timesyncd) on every host: deadlines are wall-clock times."
    if abs(worst.skew_ms) >= SKEW_FAILURE_MS:
        yield fail(f"{words}: its messages expire too early, or too late", advice)
    elif abs(worst.skew_ms) >= SKEW_WARNING_MS:
        yield warn(words, advice)
    else:
        yield ok("all clocks agree")
