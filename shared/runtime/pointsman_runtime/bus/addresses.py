"""Subjects, built once each: building one costs more than publishing to it."""

from pointsman_contracts.message import Message
from pointsman_contracts.subjects import direct_subject, stage_subject, subject

KEPT = 8192
"""Subjects kept; with more in use, all are forgotten and built anew as they come."""


class Addresses:
    """The subjects that one bus sends to."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], str] = {}

    def message(self, message: type[Message], route: tuple[str, ...]) -> str:
        """Implements `contracts.subjects.subject`."""
        key = (message, *route)
        return self._kept.get(key) or self._keep(key, subject(message, *route))

    def stage(self, service: str, instance: str | None, route: tuple[str, ...]) -> str:
        """The stage's queue-group subject, or that of one instance."""
        key = (service, instance, *route)
        found = self._kept.get(key)
        if found is not None:
            return found
        if instance is None:
            return self._keep(key, stage_subject(service, *route))
        return self._keep(key, direct_subject(service, instance, *route))

    def _keep(self, key: tuple[object, ...], text: str) -> str:
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[key] = text
        return text
