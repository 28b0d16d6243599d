"""The services that the command knows by name, from the contracts' table."""

from typing import Final

from pointsman_contracts.parties import AGENT
from pointsman_contracts.services import SERVICES as EVERY

ADAPTER: Final = "epp-adapter"
"""The edge behind Envoy; part of a stack that has one."""
SERVICES: Final = tuple(
    service.name for service in EVERY if service.name not in (ADAPTER, AGENT) and service.kind != "viewer"
)
"""The services of a stack without Envoy, in the order in which they are shown."""
