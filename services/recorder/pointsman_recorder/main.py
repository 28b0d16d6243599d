"""Wiring of the recorder."""

import os

from pointsman_contracts.attainment import AttainmentQuery
from pointsman_contracts.engine_time import EngineTimeQuery
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.regret import RegretQuery
from pointsman_contracts.story import StoryQuery
from pointsman_contracts.subjects import ANY
from pointsman_contracts.usage import UsageQuery
from pointsman_hosting.host import run
from pointsman_hosting.program import Program
from pointsman_hosting.service import Service
from pointsman_recorder.adapters.database import Database
from pointsman_recorder.adapters.event_feed import EventFeed
from pointsman_recorder.adapters.judging import Judging
from pointsman_recorder.adapters.ledger import UsageLedger
from pointsman_recorder.adapters.metrics import RecorderMetrics
from pointsman_recorder.adapters.store import EventStore, StoreBounds
from pointsman_recorder.handlers import Handlers
from pointsman_recorder.recording import Recording
from pointsman_recorder.settings import RecorderSettings


def build(service: Service[RecorderSettings]) -> None:
    """Construct everything; connect to nothing. Raises OSError when the state folder can't be used."""
    settings = service.settings
    bounds = StoreBounds(settings.keep_days, settings.keep_bytes, settings.keep_sums_days)
    store = EventStore(Database(settings.state_dir), bounds)
    service.on_stop(store.close)
    feed = EventFeed(service.events, service.bus, settings.recorder_name)
    metrics = RecorderMetrics(service.registry)
    judging = _judging(service, metrics) if settings.judge else None
    recording = Recording(store, feed, UsageLedger(service.events, service.bus, settings), metrics, judging)
    name = settings.recorder_name
    handlers = Handlers(service.process.instance, store, lambda: recording.behind, name, judging=settings.judge)
    service.readiness.add_check("ledger", lambda: recording.missing)
    service.events.handle(StoryQuery, handlers.find_story)
    service.events.handle(UsageQuery, handlers.sum_usage)
    service.events.handle(RegretQuery, handlers.sum_regret)
    service.events.handle(AttainmentQuery, handlers.sum_attainment)
    service.events.handle(EngineTimeQuery, handlers.sum_engine_time)
    service.bus.listen(PoolSnapshot, store.note_engines, ANY, keep="latest")
    service.run_in_background("ledger", recording.follow_ledger)
    service.run_in_background("events", recording.run_recording)
    service.run_in_background("retention", recording.run_deletion)


def _judging(service: Service[RecorderSettings], metrics: RecorderMetrics) -> Judging:
    # The formula needs numpy, which a recorder that judges nothing does without.
    from pointsman_recorder.domain.judge import Judge

    return Judging(Judge(), service.bus, service.settings.recorder_name, metrics)


PROGRAM = Program("recorder", RecorderSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    # No request waits for the recorder: on a shared machine, the processes that serve requests go first.
    os.nice(5)
    return run(PROGRAM)
