"""The plugins of this distribution. Other distributions add theirs as entry points, in the group of the extension
point."""

from typing import Final

from pointsman_plugins.registry import Registry
from pointsman_plugins.scheduling.points import (
    Decider,
    Filter,
    Picker,
    PreRequest,
    Producer,
    ProfileHandler,
    ResponseObserver,
    Scorer,
)
from pointsman_scheduler.domain.policy import PolicyRegistries
from pointsman_scheduler.plugins.deciders.asked import HasHeader, PromptLength
from pointsman_scheduler.plugins.deciders.prefill import Always, Multimodal, Pays, Prefix
from pointsman_scheduler.plugins.filters.asked import LoraCapable, Serves, SessionFilter, Subset
from pointsman_scheduler.plugins.filters.composed import AllOf, AnyOf, ByCondition, DryRun, FallbackOf
from pointsman_scheduler.plugins.filters.context_length import ContextLength
from pointsman_scheduler.plugins.filters.healthy import HealthyWorkers
from pointsman_scheduler.plugins.filters.narrowing import PrefixAffinity, SloHeadroom
from pointsman_scheduler.plugins.filters.registered import LabelSelector, Role
from pointsman_scheduler.plugins.filters.utilization import UtilizationFilter
from pointsman_scheduler.plugins.flow_control import flow_registries
from pointsman_scheduler.plugins.handlers.data_parallel import DataParallel
from pointsman_scheduler.plugins.handlers.disaggregated import Disaggregated
from pointsman_scheduler.plugins.handlers.named import HeaderNamed
from pointsman_scheduler.plugins.handlers.single import ShadowHandler, SingleHandler
from pointsman_scheduler.plugins.pickers.chance import PowerOfTwo, Random, TopK, WeightedRandom
from pointsman_scheduler.plugins.pickers.ranking import MaxScore, RoundRobinPicker
from pointsman_scheduler.plugins.pre_requests.cache_source import CacheSourceHeader
from pointsman_scheduler.plugins.pre_requests.headers import (
    DestinationHeader,
    EndpointScores,
    PrefillHeader,
    RankHeader,
)
from pointsman_scheduler.plugins.producers.active_blocks import ActiveBlocks
from pointsman_scheduler.plugins.producers.delay import DelayPrediction
from pointsman_scheduler.plugins.producers.latency import LatencyPrediction
from pointsman_scheduler.plugins.producers.session import Session
from pointsman_scheduler.plugins.scorers.affinity import LoraAffinity, SessionScorer
from pointsman_scheduler.plugins.scorers.books import ActiveRequests, NoHitLru, TokenLoad
from pointsman_scheduler.plugins.scorers.composed import GreatestOf, LeastOf, ScoreByCondition
from pointsman_scheduler.plugins.scorers.cost import DynamoCost, LeastDelay, PrefixCache
from pointsman_scheduler.plugins.scorers.latency import PredictedLatency
from pointsman_scheduler.plugins.scorers.load import KvUtilization, LoadAware, QueueLength, Running

PRODUCERS: Final[tuple[type[Producer], ...]] = (Session, LatencyPrediction, DelayPrediction, ActiveBlocks)
DECIDERS: Final[tuple[type[Decider], ...]] = (Prefix, Pays, Always, Multimodal, PromptLength, HasHeader)
HANDLERS: Final[tuple[type[ProfileHandler], ...]] = (
    SingleHandler,
    Disaggregated,
    HeaderNamed,
    ShadowHandler,
    DataParallel,
)
FILTERS: Final[tuple[type[Filter], ...]] = (
    HealthyWorkers,
    Subset,
    LoraCapable,
    Serves,
    Role,
    LabelSelector,
    ContextLength,
    UtilizationFilter,
    SessionFilter,
    PrefixAffinity,
    SloHeadroom,
    AnyOf,
    AllOf,
    FallbackOf,
    ByCondition,
    DryRun,
)
SCORERS: Final[tuple[type[Scorer], ...]] = (
    QueueLength,
    Running,
    LoadAware,
    KvUtilization,
    PrefixCache,
    LoraAffinity,
    SessionScorer,
    ActiveRequests,
    TokenLoad,
    NoHitLru,
    PredictedLatency,
    LeastDelay,
    DynamoCost,
    LeastOf,
    GreatestOf,
    ScoreByCondition,
)
PICKERS: Final[tuple[type[Picker], ...]] = (MaxScore, Random, WeightedRandom, TopK, PowerOfTwo, RoundRobinPicker)
PRE_REQUESTS: Final[tuple[type[PreRequest], ...]] = (
    DestinationHeader,
    EndpointScores,
    PrefillHeader,
    RankHeader,
    CacheSourceHeader,
)
OBSERVERS: Final[tuple[type[ResponseObserver], ...]] = ()


def registries() -> PolicyRegistries:
    """Built-in plugins and those that installed distributions offer."""
    flow = flow_registries()
    return PolicyRegistries(
        producers=Registry(Producer, PRODUCERS),
        deciders=Registry(Decider, DECIDERS),
        handlers=Registry(ProfileHandler, HANDLERS),
        filters=Registry(Filter, FILTERS),
        scorers=Registry(Scorer, SCORERS),
        pickers=Registry(Picker, PICKERS),
        pre_requests=Registry(PreRequest, PRE_REQUESTS),
        observers=Registry(ResponseObserver, OBSERVERS),
        fairness=flow.fairness,
        orderings=flow.orderings,
        detectors=flow.detectors,
    )
