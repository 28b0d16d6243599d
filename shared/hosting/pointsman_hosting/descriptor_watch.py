"""Notices that a process has no file descriptor left.

libuv then takes a waiting connection by a descriptor that it keeps for that, and closes it, so that the process doesn't
spin; its caller sees an end without an answer, and nothing else in the process learns of it
(https://github.com/joyent/libuv/issues/690).
"""

import asyncio
import os
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from pointsman_runtime.telling.logs import Log

LOOK_S: Final = 1.0
"""How often it is tried whether a file can be opened."""

_log = Log("process")


class DescriptorWatch:
    """Looks while its process runs. One for each process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._without = Counter(
            "pointsman_without_descriptors",
            "Looks, one a second, that found no file descriptor left: new connections are closed meanwhile",
            registry=registry,
        )
        self._lacking = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._turn)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        self.start()
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            self._without.inc()
            if not self._lacking:
                self._lacking = True
                hint = "new connections are closed unanswered; raise the limit (ulimit -n), or run more replicas"
                _log.error("no_descriptor_left", reason=error.strerror, hint=hint)
        else:
            if self._lacking:
                self._lacking = False
                _log.info("descriptors_again")
