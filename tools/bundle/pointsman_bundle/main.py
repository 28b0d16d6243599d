"""Wiring of a bundle: the named services, each with its settings, in one process."""

import argparse
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from pydantic import JsonValue

from pointsman_bundle.settings import BundleSettings
from pointsman_hosting.host import EXIT_SETTINGS, run_all
from pointsman_hosting.program import Member, Program
from pointsman_runtime.configuring.settings import ServiceSettings, SettingsError, load

GROUP: Final = "pointsman.services"
"""Entry points of the services that are installed: `Program`s by name."""
AGENT: Final = "worker-agent"
NAME: Final = "bundle"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named services until told to stop; returns the exit code."""
    installed = {found.name: found for found in entry_points(group=GROUP)}
    parser = argparse.ArgumentParser(prog="pointsman-bundle", description="Run several services in one process.")
    parser.add_argument("services", nargs="+", metavar="SERVICE", help=", ".join(sorted(installed)))
    names = list(dict.fromkeys(parser.parse_args(arguments).services))
    if unknown := [name for name in names if name not in installed]:
        parser.error(f"no such service: {', '.join(unknown)}; installed are {', '.join(sorted(installed))}")
    programs = _programs([installed[name] for name in names])
    try:
        settings, members = assembled(programs)
    except SettingsError as error:
        sys.stderr.write(f"pointsman bundle: {error}\n")
        return EXIT_SETTINGS
    return run_all(NAME, settings, members)


def assembled(programs: Sequence[Program[ServiceSettings]]) -> tuple[BundleSettings, list[Member]]:
    """The process's settings, and its services with theirs. Raises SettingsError."""
    known = frozenset(name for program in programs for name in program.settings.model_fields)
    settings = load(BundleSettings, NAME, known)
    known |= frozenset(BundleSettings.model_fields)
    members: list[Member] = []
    for program in programs:
        for given in _given(program.name, settings):
            own = load(program.settings, program.name, known, instance=settings.instance, **given)
            members.append(program.build_member(own))
    return settings, members


def _given(name: str, settings: BundleSettings) -> Iterator[Mapping[str, JsonValue]]:
    """The settings of each instance of a service, beside the environment."""
    if name == AGENT and settings.agents:
        yield from settings.agents
    else:
        yield {}


def _programs(found: Sequence[EntryPoint]) -> list[Program[ServiceSettings]]:
    # Objects of modules stay alive: collections while they load free nothing, and are a twentieth of the start.
    gc.disable()
    try:
        return [cast("Program[ServiceSettings]", each.load()) for each in found]
    finally:
        gc.enable()
