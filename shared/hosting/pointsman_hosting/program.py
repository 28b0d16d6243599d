"""A service as it is installed, and as a process runs it."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from pointsman_hosting.service import ProcessHost, Service, T_co
from pointsman_runtime.configuring.settings import ServiceSettings
from pointsman_runtime.telling.process import Process


@dataclass(frozen=True)
class Member:
    """A service that a process is to run."""

    name: str
    version: str
    compose: Callable[[ProcessHost, str], Service[ServiceSettings]]
    """Takes the process and the name of the instance."""


@dataclass(frozen=True)
class Program(Generic[T_co]):
    """An installed service: everything that a process needs to run it, alone or beside others."""

    name: str
    settings: type[T_co]
    build: Callable[[Service[T_co]], None]
    """Composes the service inside the event loop: it constructs handlers, registers them, and connects to nothing."""
    distribution: str = ""
    """The installed distribution whose version is reported; by default `pointsman-<name>`."""

    def build_member(self, settings: T_co) -> Member:  # pyright: ignore[reportGeneralTypeIssues] - a method's own T would do
        """The service with the settings that it runs with."""
        version = importlib.metadata.version(self.distribution or f"pointsman-{self.name}")

        def compose(host: ProcessHost, instance: str) -> Service[T_co]:
            service = Service(host, Process(self.name, instance, version, host.process.user), settings)
            self.build(service)
            return service

        return Member(self.name, version, compose)
