"""Fixtures, builders and fakes; development only."""

from pointsman_testing.eventually import eventually
from pointsman_testing.nats_server import NatsServer
from pointsman_testing.processes import Processes, ServiceProcess

__all__ = ["NatsServer", "Processes", "ServiceProcess", "eventually"]
