"""Reads an endpoint again and again, counts the outcomes of the readings, and reports changes."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pointsman_engines.client import EngineClient, EngineFailed, EngineHung, EngineRefused, EngineUnreachable
from pointsman_engines.exposition import UnreadableMetrics
from pointsman_engines.life import EngineLife
from pointsman_engines.models import ServedModels, served_models
from pointsman_engines.reading import Reading
from pointsman_engines.status import EngineStatus
from pointsman_runtime.telling.logs import Log

ANSWER_TIMEOUT_S: Final = 0.7
"""With the longest pace (200 ms) and the message on the bus, a stopped engine is known within a second."""
FACTS_RETRY_S: Final = 0.5
"""Until the facts are known."""
NO_LIST: Final = (404, 405)
"""Statuses of an endpoint that lists no models. Any other status leaves the question open."""

_log = Log("engine")


class ReadingTally:
    """Outcomes of the readings: plain numbers, read when metrics are scraped."""

    __slots__ = ("answered", "failed", "hung", "refused", "spent_s", "unreadable")

    def __init__(self) -> None:
        self.answered = 0
        self.refused = 0
        """The connection was refused."""
        self.hung = 0
        """No answer in time."""
        self.failed = 0
        """Another error, e.g. a status of 500 or a reset connection."""
        self.unreadable = 0
        """The answer lacks metrics."""
        self.spent_s = 0.0
        """Seconds from asking to having the numbers, over all that answered."""


class EndpointWatch(ABC):
    """Reads the endpoint until cancelled. `on_status` is called in the event loop after every reading, and after every
    other change."""

    def __init__(
        self, client: EngineClient, on_status: Callable[[EngineStatus], None], answer_timeout_s: float
    ) -> None:
        self.status = EngineStatus()
        self.tally = ReadingTally()
        self.facts_problem = ""
        """Why the facts are unknown; empty when they aren't, or weren't asked for yet."""
        self._client = client
        self._on_status = on_status
        self._answer_timeout_s = answer_timeout_s
        self._life = EngineLife()
        self._logged_problem = LoggedProblem()
        self._logged_problem_of_facts = LoggedProblem()

    @abstractmethod
    async def run(self) -> None:
        """Read until cancelled."""

    @abstractmethod
    async def _read(self) -> Reading:
        """Ask. Raises EngineUnreachable and UnreadableMetrics."""

    @abstractmethod
    def _answered(self, reading: Reading) -> None:
        """Take a reading."""

    async def _look(self) -> None:
        started = time.perf_counter()
        try:
            reading = await self._read()
        except EngineRefused as error:
            self.tally.refused += 1
            self._life.refused()
            self._unreachable(str(error))
        except EngineHung as error:
            self.tally.hung += 1
            self._unreachable(str(error))
        except EngineUnreachable as error:
            self.tally.failed += 1
            self._unreachable(str(error))
        except UnreadableMetrics as error:
            self.tally.unreadable += 1
            self._unreachable(str(error))
        else:
            self.tally.answered += 1
            self.tally.spent_s += time.perf_counter() - started
            self._answered(reading)

    async def _served(self, timeout: float, no_list: tuple[int, ...] = NO_LIST) -> ServedModels:  # noqa: ASYNC109 - the client's
        """The models that it names; none with a status of `no_list`. Raises EngineUnreachable and UnreadableModels."""
        try:
            return served_models(await self._client.models(timeout=timeout))
        except EngineFailed as error:
            if error.status in no_list:
                return ServedModels()  # the pool's configuration names its models
            raise

    def _unreachable(self, reason: str) -> None:
        self._tell(replace(self.status, reachable=False, reason=reason))

    def _facts_unknown(self, reason: str) -> None:
        self.facts_problem = reason
        if self._logged_problem_of_facts.is_news(reason, time.monotonic()):
            _log.warning("engine_facts_unknown", url=self._client.url, reason=reason)

    def _tell(self, status: EngineStatus) -> None:
        self.status = status
        if self._logged_problem.is_news(
            "" if status.reachable else status.reason or "it doesn't answer", time.monotonic()
        ):
            if status.reachable:
                _log.info("engine_answers", url=self._client.url, boot_id=status.boot_id)
            else:
                _log.warning("engine_unreachable", url=self._client.url, reason=status.reason)
        self._on_status(status)


WARNED_EVERY_S: Final = 60.0
"""An engine whose state flaps is warned of this often at most: there may be a thousand of them."""


class LoggedProblem:
    """The last problem logged about one subject. A problem that is held back is logged later, if it lasts."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._warned_at = -math.inf

    def is_news(self, problem: str, now: float) -> bool:
        """Whether to log this state now, which then counts as logged; an empty `problem` means none. `now` is
        monotonic."""
        if problem == self._last or (problem and now - self._warned_at < WARNED_EVERY_S):
            return False
        if problem:
            self._warned_at = now
        self._last = problem
        return True
