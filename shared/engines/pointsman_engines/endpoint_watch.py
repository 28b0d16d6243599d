"""Asks an endpoint for its pages again and again, and reports changes.

Three facts are kept apart. It is unreachable when connections are refused or reset; it isn't ready when it says so, or
when none of its pages answers; its load is unknown when the page with its metrics can't be read. A late answer is
waited for and read: asking again would only add to what the endpoint has to do.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from pointsman_contracts.timing import TIMES
from pointsman_contracts.worker import WorkerFinding
from pointsman_engines.client import (
    EngineClient,
    EngineFailed,
    EngineHung,
    EngineRefused,
    EngineReset,
    EngineUnreachable,
    OwnLimitReached,
    PageUnread,
)
from pointsman_engines.life import EngineLife
from pointsman_engines.logged_problem import LoggedProblem
from pointsman_engines.models import ServedModels, UnreadableModels, served_models
from pointsman_engines.page_time import LATEST_S, LONGEST_ANSWER_S, PageTime
from pointsman_engines.reading import EngineIdentity
from pointsman_engines.status import EngineStatus, reason_of
from pointsman_runtime.telling.logs import Log

ANSWER_TIMEOUT_S: Final = 0.7
"""With the longest pace (200 ms) and the message on the bus, a stopped engine is known within a second."""
FACTS_RETRY_S: Final = 0.5
"""Until the facts are known."""
NO_LIST: Final = (404, 405)
"""Statuses of an endpoint that lists no models. Any other status leaves the question open."""
UNLISTED_AFTER_S: Final = 2.0
"""How long its list of models is unreadable before an engine serves the models that its pool names."""
RESETS: Final = 2
"""Connections in a row that are closed without an answer before the endpoint counts as unreachable."""

_log = Log("engine")


class ReadingTally:
    """Outcomes of the readings: plain numbers, read when metrics are scraped."""

    __slots__ = ("answered", "failed", "hung", "late", "refused", "spent_s", "unreadable")

    def __init__(self) -> None:
        self.answered = 0
        self.refused = 0
        """The connection was refused."""
        self.hung = 0
        """No answer at all."""
        self.failed = 0
        """Another error, e.g. a status of 500 or a reset connection."""
        self.unreadable = 0
        """The answer lacks metrics, or has impossible ones."""
        self.late = 0
        """Late answers, whatever they were."""
        self.spent_s = 0.0
        """Seconds from asking to having the numbers, over all that answered."""


class LoadPage:
    """One page that is asked for again and again."""

    def __init__(self, name: str, shortest_s: float, *, tells_load: bool = False) -> None:
        self.name: Final = name
        # Older figures weigh nothing in a scheduler.
        self.time: Final = PageTime(shortest_s, TIMES.load_worthless_s if tells_load else LATEST_S)
        self.tells_load: Final = tells_load
        """Whether the load is unknown while this page is late."""


class EndpointWatch(ABC):
    """Watches the endpoint until cancelled. `on_status` is called in the event loop after every reading, and after
    every other change."""

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
        self._models: Final = LoadPage("/v1/models", answer_timeout_s)
        self._answered_at = -math.inf
        """When any page answered last, whatever the answer was."""
        self._resets = 0
        """Connections in a row that were closed without an answer."""
        self._unhealthy = ""
        """Why it says that it isn't ready; empty when it doesn't."""
        self._silent = ""
        """Why it seems to hang; empty when it doesn't."""
        self._unlisted = ""
        """Why its models are unknown; empty when they aren't, or it lists none."""
        self._unlisted_since: float | None = None
        """Since when its list of models was unreadable; monotonic."""
        self._logged_reach = LoggedProblem()
        self._logged_ready = LoggedProblem(well=True)
        self._logged_load = LoggedProblem(well=True)
        self._logged_facts = LoggedProblem(well=True)

    @abstractmethod
    async def run(self) -> None:
        """Watch until cancelled."""

    def _findings(self) -> tuple[WorkerFinding, ...]:
        """Faults that an operator must mend."""
        return (WorkerFinding(kind="models_unknown", what=self._unlisted),) if self._unlisted else ()

    @abstractmethod
    def _half_late(self) -> None:
        """The answer of a page takes long: an occasion to ask another one."""

    @contextmanager
    def _asking(self, page: LoadPage) -> Generator[None]:
        """Around the request for a page: what its answer, or the lack of one, says of reachability."""
        asked, late_after = _now(), page.time.late_after_s
        loop = asyncio.get_running_loop()
        half = loop.call_later(late_after / 2, self._half_late)
        late = loop.call_later(late_after, self._late, page, asked, late_after)
        try:
            yield
        except EngineUnreachable as error:
            if isinstance(error, EngineRefused):
                self._life.note_refused()
            self._unreachable(str(error))
            raise
        except EngineReset as error:
            self._resets += 1
            if self._resets >= RESETS:
                self._unreachable(str(error))
            raise
        except (EngineHung, OwnLimitReached):
            raise
        except Exception:
            self._heard(page, asked)  # an answer, if not the one that was wanted
            raise
        else:
            self._heard(page, asked)
        finally:
            half.cancel()
            late.cancel()

    def _heard(self, page: LoadPage, asked: float) -> None:
        self._answered_at = _now()
        self._resets = 0
        page.time.record_answer(self._answered_at - asked)
        if self._silent:
            self._silent = ""
            self._tell(self.status)

    def _late(self, page: LoadPage, asked: float, late_after: float) -> None:
        reason = f"no answer from {page.name} for {late_after:.1f} s"
        if self._answered_at < asked:
            self._silent = reason
        if page.tells_load:
            self.tally.late += 1
            self._load_lost(reason, answers=not self._silent)
        elif not self.status.boot_id:
            self._tell(replace(self.status, reason=reason))
        else:
            self._tell(self.status)

    def _load_lost(self, reason: str, *, answers: bool) -> None:
        """The load is unknown. `answers`: the endpoint answers other requests, or this one with something else."""
        if answers and self.status.boot_id:
            self._meets(EngineIdentity())
        status = replace(self.status, load_unknown=reason)
        self._tell(status if status.boot_id else replace(status, reason=reason))

    def _meets(self, who: EngineIdentity) -> bool:
        """The endpoint was met; `status` names its life from here on. Returns whether that began now."""
        began = self._life.note_answer(who, _now())
        if began:
            if self.status.boot_id:
                _log.warning("engine_restarted", url=self._client.url, boot_id=self._life.boot_id)
            self.status = replace(self.status, boot_id=self._life.boot_id, reading=None, facts=None, asleep=False)
            self._unlisted, self._unlisted_since = "", None
            self._begun()
        self.status = replace(self.status, reachable=True, reason="")
        return began

    @abstractmethod
    def _begun(self) -> None:
        """A life began."""

    async def _served(self, no_list: tuple[int, ...] = NO_LIST, *, known: bool = True) -> ServedModels:
        """The models that it names; none with a status of `no_list`. Where its list stays unreadable and it is `known`
        to be an engine, none either: the pool's configuration names its models. Raises PageUnread and
        UnreadableModels."""
        served = ServedModels()
        try:
            with self._asking(self._models):
                served = served_models(await self._client.models(timeout=LONGEST_ANSWER_S))
        except EngineFailed as error:
            if error.status not in no_list:
                self._note_unlisted(error, known)
                return served
        except UnreadableModels as error:
            self._note_unlisted(error, known)
            return served
        self._unlisted, self._unlisted_since = "", None
        return served

    def _note_unlisted(self, error: EngineFailed | UnreadableModels, known: bool) -> None:
        """Raises the error while it may pass, and where a list was read before: that goes on to hold."""
        now, facts = _now(), self.status.facts
        if self._unlisted_since is None:
            self._unlisted_since = now
        if not known or (facts is not None and facts.served.models) or now - self._unlisted_since < UNLISTED_AFTER_S:
            raise error
        self._unlisted = str(error)

    def _count(self, error: PageUnread) -> None:
        if isinstance(error, EngineRefused):
            self.tally.refused += 1
        elif isinstance(error, EngineHung):
            self.tally.hung += 1
        else:
            self.tally.failed += 1

    def _unreachable(self, reason: str) -> None:
        self._silent = ""
        self._tell(replace(self.status, reachable=False, reason=reason, load_unknown=reason))

    def _facts_unknown(self, reason: str) -> None:
        self.facts_problem = reason
        if self._logged_facts.is_news(reason, time.monotonic()):
            _log.warning("engine_facts_unknown", url=self._client.url, reason=reason)

    def _tell(self, status: EngineStatus) -> None:
        self.status = status = replace(status, unready=self._unhealthy or self._silent, findings=self._findings())
        now, url = _now(), self._client.url
        if self._logged_reach.is_news("" if status.reachable else status.reason or "it doesn't answer", now):
            if status.reachable:
                _log.info("engine_answers", url=url, boot_id=status.boot_id)
            else:
                _log.warning("engine_unreachable", url=url, reason=status.reason)
        if status.reachable:
            if self._logged_ready.is_news(reason_of(status), now):
                _log_change("engine_not_ready", "engine_ready", url, reason_of(status))
            if self._logged_load.is_news(status.load_unknown, now):
                _log_change("engine_load_unknown", "engine_load_known", url, status.load_unknown)
        self._on_status(status)


def _log_change(problem: str, well: str, url: str, reason: str) -> None:
    if reason:
        _log.warning(problem, url=url, reason=reason)
    else:
        _log.info(well, url=url)


def _now() -> float:
    """Seconds of the event loop's clock."""
    return asyncio.get_running_loop().time()
