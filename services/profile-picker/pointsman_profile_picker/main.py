"""Wiring of the profile-picker."""

from pointsman_contracts.journey import Journey
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.subjects import ANY
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_profile_picker.configuration import compile_routing
from pointsman_profile_picker.handlers import Handlers
from pointsman_profile_picker.settings import ProfilePickerSettings


def build(service: Service[ProfilePickerSettings]) -> None:
    """Construct everything; connect to nothing."""
    handlers = Handlers(service.configuration(compile_routing), service.registry)
    service.journeys.stage(Journey, handlers.pick)
    service.bus.listen(PoolSnapshot, handlers.snapshot, ANY, keep="latest")


PROGRAM = Program("profile-picker", ProfilePickerSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    return run(PROGRAM)
