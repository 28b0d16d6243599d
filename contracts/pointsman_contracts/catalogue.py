"""Every message, for schemas, the AsyncAPI document and tests."""

from typing import Final

from pointsman_contracts.api_key import ApiKey, ApiKeyChanged
from pointsman_contracts.attainment import AttainmentQuery, AttainmentSums
from pointsman_contracts.batch import BatchRecord, FileChunk, LentIdentity, LineResult, StoredFile
from pointsman_contracts.cache import CachePurge, CachePurged
from pointsman_contracts.content import Content, ContentEdited, ContentEdits, ContentQuery, PromptEnd, PromptTokens
from pointsman_contracts.demand import PoolWanted, WakeOrder
from pointsman_contracts.draining import DrainAnswer, DrainOrder, DrainQuery
from pointsman_contracts.engine_time import EngineTimeQuery, EngineTimeSums
from pointsman_contracts.event_loss import EventsLost
from pointsman_contracts.fleet import FleetQuery, FleetView
from pointsman_contracts.journey import Journey, PreprocessRequest
from pointsman_contracts.kept_response import KeptResponse
from pointsman_contracts.kv import WorkerKvEvents, WorkerKvQuery, WorkerKvState
from pointsman_contracts.limits import (
    BudgetReached,
    LimitAsks,
    LimitHandOver,
    LimitKept,
    LimitReleases,
    LimitShard,
    LimitVerdicts,
)
from pointsman_contracts.message import Message
from pointsman_contracts.mirroring import MirrorCompared
from pointsman_contracts.model import ModelStatistics
from pointsman_contracts.pool import PoolRules, PoolSnapshot
from pointsman_contracts.presence import OpenRequests, OpenRequestsQuery, ServicePresence
from pointsman_contracts.regret import RegretQuery, RegretSums, RequestsJudged
from pointsman_contracts.reply import Answer, Decision, Parked, Rejection
from pointsman_contracts.response import (
    AttemptFailed,
    RequestAnswered,
    RequestRejected,
    ResponseCompleted,
    ResponseReviewed,
    ResponseStarted,
)
from pointsman_contracts.response_stage import ResponseReview, Verdict
from pointsman_contracts.scheduling import RequestScheduled, Reservations, SchedulerState, SchedulerStateQuery
from pointsman_contracts.session import SessionMoved
from pointsman_contracts.story import DryRunQuery, Story, StoryQuery
from pointsman_contracts.usage import UsageQuery, UsageRecord, UsageSums
from pointsman_contracts.verdicts import MovedRequests, MoveRequests, WorkerJudged, WorkerVerdicts
from pointsman_contracts.work import WorkItem, WorkResult
from pointsman_contracts.worker import (
    WorkerAnnouncement,
    WorkerClaim,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
    WorkerLoad,
    WorkerRegistration,
    WorkerSilent,
)

MESSAGES: Final[tuple[type[Message], ...]] = (
    PreprocessRequest,
    Journey,
    Decision,
    Rejection,
    Parked,
    Answer,
    ResponseReview,
    Verdict,
    RequestScheduled,
    Reservations,
    SchedulerStateQuery,
    SchedulerState,
    FleetQuery,
    FleetView,
    ResponseStarted,
    AttemptFailed,
    RequestRejected,
    RequestAnswered,
    ResponseCompleted,
    ResponseReviewed,
    SessionMoved,
    MirrorCompared,
    PoolWanted,
    UsageRecord,
    EventsLost,
    RequestsJudged,
    RegretQuery,
    RegretSums,
    AttainmentQuery,
    AttainmentSums,
    UsageQuery,
    UsageSums,
    EngineTimeQuery,
    EngineTimeSums,
    StoryQuery,
    DryRunQuery,
    Story,
    WorkerRegistration,
    WorkerAnnouncement,
    WorkerClaim,
    WorkerLoad,
    WorkerKvEvents,
    WorkerKvQuery,
    WorkerKvState,
    WorkerJoined,
    WorkerSilent,
    WorkerLeft,
    WorkerVerdicts,
    WorkerJudged,
    WorkerDraining,
    DrainQuery,
    DrainAnswer,
    DrainOrder,
    WakeOrder,
    PoolSnapshot,
    PoolRules,
    ModelStatistics,
    ServicePresence,
    OpenRequestsQuery,
    OpenRequests,
    MoveRequests,
    MovedRequests,
    LimitAsks,
    LimitVerdicts,
    LimitReleases,
    LimitKept,
    LimitHandOver,
    LimitShard,
    BudgetReached,
    ContentQuery,
    Content,
    ContentEdits,
    ContentEdited,
    PromptTokens,
    PromptEnd,
    CachePurge,
    CachePurged,
    ApiKey,
    ApiKeyChanged,
    StoredFile,
    FileChunk,
    BatchRecord,
    LineResult,
    LentIdentity,
    KeptResponse,
    WorkItem,
    WorkResult,
)
