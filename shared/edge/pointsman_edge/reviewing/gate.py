"""A stage on the way back before one answer."""

import time
from collections.abc import Iterable
from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.streams import StreamEvent
from pointsman_contracts.journey import AnswerUse, BodyEdit, Stage
from pointsman_edge.reviewing.answer_window import AnswerWindow
from pointsman_edge.reviewing.reviews import timeout_of

OUTCOMES: Final = {"pass": "passed", "replace": "replaced", "block": "blocked"}
"""What a report says of each action of a verdict."""


class Gate:
    """One stage before one answer."""

    __slots__ = ("_api", "_asked", "_window", "fields", "given_up", "position", "stage", "unread", "use")

    def __init__(self, position: int, stage: Stage, api: Api) -> None:
        self.position = position
        self.stage = stage
        self.use = stage.answer or AnswerUse()
        self._api = api
        self._asked = 0
        self.given_up = False
        """It isn't asked any more: the answer was too large to be held for it, or it needs nothing of it."""
        self.fields: tuple[BodyEdit, ...] = ()
        """Of every event of a stream that it lets pass from now on."""
        self.unread = False
        """Something of the answer couldn't be shown to it."""
        self._window: AnswerWindow | None = None

    @property
    def window(self) -> AnswerWindow:
        """What of a stream it hasn't let pass yet."""
        if self._window is None:
            self._window = AnswerWindow(self._api, self.use)
        return self._window

    def alter(self, events: Iterable[StreamEvent]) -> None:
        """Set its fields in events that leave."""
        if self.fields:
            for event in events:
                event.set(self.fields)

    def next_number(self) -> int:
        """Of the next question, from 1."""
        self._asked += 1
        return self._asked


def due_ms(stage: Stage) -> int:
    """When an answer to a question that is asked now must be there, unix milliseconds."""
    return time.time_ns() // 1_000_000 + round(timeout_of(stage) * 1000)
