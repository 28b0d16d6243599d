"""One request of a batch or of a work queue: it has a slot while it is open, and is sent again while that can help."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from pointsman_batch.domain.lines import LineRequest
from pointsman_batch.domain.verdict import LineTries, judge, wait_s
from pointsman_batch.metrics import BatchMetrics
from pointsman_batch.slots import Slots
from pointsman_core.door_answer import DoorAnswer
from pointsman_hosting.own_door import OwnDoor

LOOK_S: Final = 1.0
"""How often a line that waits for a slot looks whether it may still run."""


class Leave(Protocol):
    """Says whether a line may run."""

    @property
    def goes_on(self) -> bool:
        """False when the line is given up."""
        ...

    @property
    def is_held(self) -> bool:
        """False while another replica may run the line."""
        ...


class LineAtWork:
    """A line on its way to its answer."""

    __slots__ = ("_gateway", "_has_slot", "_leave", "_metrics", "_request", "_slots", "tries")

    def __init__(
        self, gateway: OwnDoor, slots: Slots, metrics: BatchMetrics, leave: Leave, request: LineRequest
    ) -> None:
        self._gateway = gateway
        self._slots = slots
        self._metrics = metrics
        self._leave = leave
        self._has_slot = False
        self._request = request
        self.tries = LineTries()

    async def wait_for_slot(self) -> bool:
        """Take a slot; False when the line is given up first."""
        while self._leave.goes_on:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._slots.take_slot(self._request.batch, self._request.model)
            except TimeoutError:
                continue
            if self._leave.is_held:
                self._has_slot = True
                return True
            # Another replica may run the line: wait until the lease is renewed.
            self._slots.give_back()
            await asyncio.sleep(LOOK_S / 4)
        return False

    def give_back(self) -> None:
        """Give the slot back, if the line has one."""
        if self._has_slot:
            self._has_slot = False
            self._slots.give_back()

    async def answer_line(self, token: Callable[[], Awaitable[str]]) -> DoorAnswer | None:
        """The answer that is the line's result; None when the line was given up first. The line has a slot. `token`:
        gives that of the identity that is lent to it now."""
        request = self._request
        while True:
            request_id = f"{request.request_id}-{self.tries.attempt}"
            answer = await self._gateway.send_request(request.endpoint, request.body, await token(), request_id)
            verdict = judge(answer, self.tries)
            self._metrics.answers.labels(verdict).inc()
            if verdict == "refused":
                self._slots.record_refusal(answer.retry_after_s)
            elif answer.status and verdict != "limited":
                self._slots.record_answer()
            self.give_back()
            if verdict == "final":
                return answer
            # A limit of the sender says nothing about the room that other senders' lines have.
            self.tries = self.tries.after(verdict)
            await asyncio.sleep(wait_s(self.tries, answer.retry_after_s))
            if not await self.wait_for_slot():
                return None
