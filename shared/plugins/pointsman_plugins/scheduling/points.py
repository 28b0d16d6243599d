"""The extension points of scheduling, in the order in which a request meets them.

`Producer.produce` → until the handler has enough: `ProfileHandler.pick`, and for each profile that it names
`Filter.filter`…, `Scorer.score`…, `Picker.pick` → `ProfileHandler.process_results` → `PreRequest.prepare` →
`ResponseObserver.chosen`, and later `started`, `failed`, `completed`, `gone`. `Decider.wanted` is asked by handlers.

All run in one event-loop turn, so that two simultaneous requests see each other. They do no I/O and take no
time from a clock.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np

from pointsman_contracts.journey import HeaderEdit
from pointsman_contracts.scheduling import LegsForecast
from pointsman_core.plugins import Key, PluginError
from pointsman_plugins.plugin import ParamsT_co, Plugin
from pointsman_plugins.scheduling.arrays import Bools, Floats, Scores
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.request import ScheduleRequest, Wish
from pointsman_plugins.scheduling.run import NO_ENDPOINTS, Exhausted, Run, Selection
from pointsman_plugins.scheduling.worker import Hold, Worker

MATCHED_TOKENS: Final[Key[Floats]] = Key("matched-tokens", np.ndarray)
"""Prompt tokens that each worker of the fleet is believed to hold in its KV cache. Always there."""


class Producer(Plugin[ParamsT_co]):
    """Puts attributes on the request before the first profile runs. Per-worker attributes are columns of the fleet."""

    group = "pointsman.scheduler.producers"

    @abstractmethod
    def produce(self, request: ScheduleRequest, everyone: Candidates) -> None:
        """Produce attributes; `everyone` is the whole fleet."""


class Removal(NamedTuple):
    """The candidates that a filter removes."""

    keep: Bools
    """One entry for each candidate."""
    why: str | Callable[[Worker], str]
    """The reason for a removed worker, in words for an operator."""
    degraded: str | None = None
    """Set when the filter let candidates through only because there were no better ones."""
    in_turn: bool = False
    """Whether those kept are chosen in turn, whatever their scores: all of them fail, and one that fails fast must not
    win because its queue is short."""


class Filter(Plugin[ParamsT_co]):
    """Decides who may serve the request at all."""

    group = "pointsman.scheduler.filters"
    stability = "beta"

    only_for: ClassVar[Wish | None] = None
    """The filter isn't asked about a request without this fact: it would keep all."""
    exhausted: ClassVar[Exhausted] = NO_ENDPOINTS
    """The client's error when this filter removes the last candidate."""

    @abstractmethod
    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        """None keeps all."""


class Scorer(Plugin[ParamsT_co]):
    """Scores how well each candidate suits the request."""

    group = "pointsman.scheduler.scorers"
    stability = "beta"

    only_for: ClassVar[Wish | None] = None
    """The scorer isn't asked about a request without this fact: it would give each candidate 1."""
    bounded: ClassVar[bool] = False
    """Whether every score is in [0,1] or NaN: then no score needs clamping. A subclass with a `score` of its own says
    so again."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "score" in vars(cls) and "bounded" not in vars(cls):
            cls.bounded = False

    @abstractmethod
    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        """One value in [0,1] for each candidate, higher is better. Values outside are clamped, NaN counts as 0."""


class Picker(Plugin[ParamsT_co]):
    """Chooses by the weighted sums of the scores."""

    group = "pointsman.scheduler.pickers"
    stability = "beta"

    takes_lists: ClassVar[bool] = False
    """Whether `pick` also takes `totals` as a list, which they are for `FEW` candidates: the array costs as much again
    as their order. A subclass with a `pick` of its own says so again."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "pick" in vars(cls) and "takes_lists" not in vars(cls):
            cls.takes_lists = False

    @abstractmethod
    def pick(self, request: ScheduleRequest, candidates: Candidates, totals: Floats) -> Sequence[int]:
        """Indices of candidates, best first: the choice and its fallbacks. There is at least one candidate; chance
        comes from `candidates.dice` alone."""


class Decider(Plugin[ParamsT_co]):
    """A condition that a profile handler refers to, e.g. whether prefill goes elsewhere."""

    group = "pointsman.scheduler.deciders"

    @abstractmethod
    def wanted(self, request: ScheduleRequest, run: Run | None) -> bool:
        """`run` is the profile run that the question is about; None when it failed or none has run."""


class LegDecider(Decider[ParamsT_co]):
    """A decider that compares: `wanted` says whether the other profile runs at all, `weigh` whether its choice is
    used."""

    @abstractmethod
    def weigh(self, request: ScheduleRequest, answering: Run, other: Run) -> LegsForecast | None:
        """The predicted costs of the request with the choices of both runs; None where nothing can be predicted: then
        the other run's choice is used."""


class ProfileHandler(Plugin[ParamsT_co]):
    """Decides which profiles run and what their results mean together. Exactly one in each policy."""

    group = "pointsman.scheduler.handlers"

    pre_request: ClassVar[tuple[str, ...]] = ()
    """Types of the `PreRequest` plugins that this handler's protocol needs; added when the configuration lists none."""

    def check(self, profiles: Collection[str]) -> None:
        """Refuse profiles that this handler can't work with: PluginError naming them."""

    @abstractmethod
    def pick(
        self, request: ScheduleRequest, profiles: Collection[str], results: Mapping[str, Run | None]
    ) -> Sequence[str]:
        """Profiles to run next; none ends. `results` holds the finished ones, None for a failed run; a profile
        in it isn't run again. Not asked once all have run."""

    @abstractmethod
    def process_results(self, request: ScheduleRequest, results: Mapping[str, Run | None]) -> Selection | None:
        """Combine the runs: names the one whose choice is used. None when the request can't be served."""


class PreRequest(Plugin[ParamsT_co]):
    """Writes what the request needs on its way: the protocol between scheduler, proxy and engine lives here."""

    group = "pointsman.scheduler.pre-requests"

    @abstractmethod
    def prepare(self, request: ScheduleRequest, selection: Selection) -> Sequence[HeaderEdit]: ...


class ResponseObserver(Plugin[ParamsT_co]):
    """Receives the outcome of every request of the pool, by any scheduler. Override the methods of interest."""

    group = "pointsman.scheduler.observers"

    def chosen(self, hold: Hold, now: float) -> None:
        """A reservation was added to a worker's books. `gone` always follows, exactly once."""

    def started(self, hold: Hold, now: float, ttft_ms: float) -> None:
        """The first byte came, `ttft_ms` after the edge sent the request to the worker."""

    def failed(self, hold: Hold, now: float) -> None:
        """The worker didn't answer."""

    def completed(self, hold: Hold, now: float, output_tokens: int | None, duration_ms: float | None) -> None:
        """It was answered to its end. None for a value that was not reported; `duration_ms` counts from its receipt by
        the edge."""

    def gone(self, hold: Hold, now: float) -> None:
        """The reservation is off the books."""


def need_profile(handler: ProfileHandler, name: str, profiles: Collection[str]) -> None:
    """PluginError when `handler` refers to a profile that doesn't exist."""
    if name not in profiles:
        raise PluginError(
            f"profile handler {handler.name!r} ({handler.type_name}) needs a scheduling profile {name!r}; "
            f"there are: {', '.join(sorted(profiles))}"
        )
