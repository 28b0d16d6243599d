"""Questions about requests and usage, and their answers."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from pointsman_contracts.attainment import AttainmentQuery, AttainmentSums
from pointsman_contracts.engine_time import EngineTimeQuery, EngineTimeSums
from pointsman_contracts.regret import RegretQuery, RegretSums
from pointsman_contracts.story import KeptEvent, Story, StoryQuery
from pointsman_contracts.usage import LostSum, UsageQuery, UsageSums
from pointsman_recorder.domain.attainment_row import AttainmentAnswer
from pointsman_recorder.domain.engine_shares import EngineTimeAnswer
from pointsman_recorder.domain.regret_sums import RegretAnswer
from pointsman_recorder.domain.usage_record import Sums


class KeptEvents(Protocol):
    """The store, as far as it answers."""

    def read_story(self, request_id: str) -> Awaitable[tuple[list[KeptEvent], bool]]:
        """Events of a request, and whether there are more."""
        ...

    def story_of_trace(self, trace: str) -> Awaitable[tuple[list[KeptEvent], bool]]:
        """Events of the requests of a trace, and whether there are more."""
        ...

    def sum_usage(self, query: UsageQuery) -> Awaitable[Sums]:
        """Rows, and what must be known of them. Raises ValueError for a question that has no answer."""
        ...

    def sum_lost(self, query: UsageQuery) -> Awaitable[list[LostSum]]:
        """Events that are missing on the days of a question, by type. Raises ValueError for what is no day."""
        ...

    def sum_regret(self, query: RegretQuery, judge: str) -> Awaitable[RegretAnswer]:
        """Rows of a recorder's judgements. Raises ValueError for a question that has no answer."""
        ...

    def sum_attainment(self, query: AttainmentQuery) -> Awaitable[tuple[AttainmentAnswer, list[LostSum]]]:
        """Rows, and the events that are missing. Raises ValueError for a question that has no answer."""
        ...

    def sum_engine_time(self, query: EngineTimeQuery) -> Awaitable[EngineTimeAnswer]:
        """Rows, and all time of the engines. Raises ValueError for a question that has no answer."""
        ...


class Handlers:
    """Answers from the store."""

    def __init__(self, instance: str, kept: KeptEvents, behind: Callable[[], int], name: str, *, judging: bool) -> None:
        """`behind`: how many events aren't in the store yet. `name`: what the recorder's judgements are known by."""
        self._instance = instance
        self._kept = kept
        self._behind = behind
        self._name = name
        self._judging = judging

    async def find_story(self, query: StoryQuery) -> Story:
        """The stored events of a request."""
        if query.trace is not None and not query.request_id:
            events, more = await self._kept.story_of_trace(query.trace)
        else:
            events, more = await self._kept.read_story(query.request_id)
        return Story(recorder=self._instance, events=tuple(events), more=more, behind=self._behind())

    async def sum_usage(self, query: UsageQuery) -> UsageSums:
        found = await self._kept.sum_usage(query)
        return UsageSums(
            recorder=self._instance,
            rows=tuple(found.rows),
            more=found.more,
            behind=self._behind(),
            unpriced_models=tuple(found.unpriced_models),
            lost=tuple(await self._kept.sum_lost(query)),
        )

    async def sum_regret(self, query: RegretQuery) -> RegretSums:
        found = await self._kept.sum_regret(query, self._name)
        return RegretSums(
            recorder=self._instance,
            judging=self._judging,
            rows=tuple(found.rows),
            more=found.more,
            behind=self._behind(),
        )

    async def sum_attainment(self, query: AttainmentQuery) -> AttainmentSums:
        found, lost = await self._kept.sum_attainment(query)
        return AttainmentSums(
            recorder=self._instance,
            rows=tuple(found.rows),
            more=found.more,
            behind=self._behind(),
            since_ms=found.since_ms,
            until_ms=found.until_ms,
            lost=tuple(lost),
        )

    async def sum_engine_time(self, query: EngineTimeQuery) -> EngineTimeSums:
        found = await self._kept.sum_engine_time(query)
        return EngineTimeSums(
            recorder=self._instance,
            rows=tuple(found.rows),
            more=found.more,
            behind=self._behind(),
            total_us=found.total_us,
            total_nanos=found.total_nanos,
        )
