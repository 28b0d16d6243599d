"""Ends a request from outside, for one reason."""

import asyncio
from typing import Literal

from pointsman_edge.reviewing.way_back import WayBack
from pointsman_edge.taking_in.held_bodies import HeldBody
from pointsman_frontend.adapters.http_connection import HANG_UP
from pointsman_runtime.service.http_server import Scope
from pointsman_runtime.telling.telemetry import Span

Reason = Literal["client_gone", "timeout", "shutdown"]


class Leash:
    """Holds the task that serves one request. What it waits for is cancelled once, and `reason` says why."""

    __slots__ = ("_task", "due", "held", "reason", "span", "way_back")

    def __init__(self, task: "asyncio.Task[object]", due: float) -> None:
        self._task: asyncio.Task[object] | None = task
        self.due = due
        """Monotonic time at which the request has taken too long."""
        self.reason: Reason | None = None
        self.span: Span | None = None
        """Of the whole request, once its head is understood."""
        self.held: HeldBody | None = None
        """Its body, once it is complete."""
        self.way_back: WayBack | None = None
        """What its answer passes, once there is one to pass the stages on the way back."""

    def pull(self, reason: Reason) -> None:
        """End the request, unless it is ending already."""
        if self._task is not None:
            self.reason = reason
            self._task.cancel()
            self._task = None

    def watch(self, scope: Scope) -> None:
        """Pull when the client of this connection hangs up."""
        scope["extensions"][HANG_UP]["watch"](self._hung_up)

    def let_go(self) -> None:
        """The request ends by itself; nothing pulls any more."""
        self._task = None

    def _hung_up(self) -> None:
        self.pull("client_gone")
