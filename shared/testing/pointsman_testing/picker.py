"""A running endpoint picker, as tests use it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pointsman_contracts.content import PromptTokens
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery
from pointsman_contracts.response import ResponseCompleted
from pointsman_testing.eventually import eventually
from pointsman_testing.ext_proc import ExtProcClient
from pointsman_testing.fake_stages import FakeReviewers, FakeStages, RecordedEvents


@dataclass
class PickerUnderTest:
    """A running endpoint picker, a client of it, and everything around."""

    client: ExtProcClient
    target: str
    """Host and port."""
    stages: FakeStages
    reviewers: FakeReviewers
    events: RecordedEvents
    hear: Callable[[PoolSnapshot | PromptTokens], None]
    """Gives the edge a signal."""
    ask_open: Callable[[OpenRequestsQuery], OpenRequests]
    """Asks the edge which requests are open."""
    stop: Callable[[], Awaitable[None]] = field(repr=False)
    """The effect of SIGTERM on its gRPC side."""
    metric: Callable[[str, dict[str, str]], float | None] = field(repr=False)
    """The value of one of its metrics, by name and labels."""
    health_port: int | None = None
    """The port for health alone, where the settings ask for one."""

    async def completed(self, count: int = 1) -> list[ResponseCompleted]:
        """The completions, once this number has arrived."""
        await eventually(lambda: len(self.events.of(ResponseCompleted)) >= count)
        return self.events.of(ResponseCompleted)


StartPicker = Callable[..., Awaitable[PickerUnderTest]]
"""`await start_picker(*engine_urls, config={…}, **settings)`."""
