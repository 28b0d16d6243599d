"""Wiring of the batch service."""

import os
import time
from typing import Final

from pointsman_batch.adapters.asker import Asker
from pointsman_batch.adapters.batches import Batches, SeenBatch
from pointsman_batch.adapters.chunks import BucketChunks, ChunkStore, FolderChunks, WatchedChunks
from pointsman_batch.adapters.files import Files
from pointsman_batch.adapters.results import LineResults
from pointsman_batch.adapters.work_queue import WorkStreams
from pointsman_batch.configuration import compile_policy
from pointsman_batch.domain.pace import Pace
from pointsman_batch.domain.room import SeenPool, has_room
from pointsman_batch.door import BatchApi
from pointsman_batch.handlers import Handlers, TakenBounds
from pointsman_batch.metrics import BatchMetrics
from pointsman_batch.run_tools import RunTools
from pointsman_batch.runner import Runner
from pointsman_batch.settings import BatchSettings
from pointsman_batch.slots import LOOK_S, Slots
from pointsman_batch.work_runner import WorkRunner
from pointsman_contracts.batch import BATCHES_BUCKET, CHUNKS_BUCKET, FILES_BUCKET, LENT_BUCKET, RESULTS_BUCKET
from pointsman_contracts.pool import PoolSnapshot
from pointsman_contracts.subjects import ANY
from pointsman_contracts.timing import ROLLOUT_LOOK_S
from pointsman_edge.taking_in.request_headers import HeaderRules
from pointsman_edge.taking_in.trust import TrustedProxies
from pointsman_hosting.host import run
from pointsman_hosting.http_server import HttpServer
from pointsman_hosting.lending import Lending
from pointsman_hosting.own_door import OwnDoor
from pointsman_hosting.program import Program
from pointsman_hosting.rollout import Rollout
from pointsman_hosting.service import Service
from pointsman_journey.journey_client import JourneyClient

LARGEST_ANSWER: Final = 64 * 2**20
"""Bytes of the answer to a line that are read."""


def build(service: Service[BatchSettings]) -> None:
    """Construct everything; connect to nothing."""
    settings = service.settings
    rollout = Rollout(service.configuration(compile_policy), service.heartbeat.table)
    pools: dict[str, SeenPool] = {}

    def keep_pool(snapshot: PoolSnapshot) -> None:
        pools[snapshot.pool] = SeenPool(snapshot, time.monotonic())

    service.bus.listen(PoolSnapshot, keep_pool, ANY, keep="latest")
    slots = Slots(
        Pace(settings.lines_at_once),
        lambda model: has_room(rollout.compile_current().config, pools, model, settings.room_below, time.monotonic()),
    )
    metrics = BatchMetrics(service.registry, lambda: slots.pace.at_work, lambda: slots.pace.limit)
    chunks = WatchedChunks(_chunks(service), metrics.store_failures)
    files = Files(service.open_bucket(FILES_BUCKET), chunks)
    gateway = OwnDoor(settings.gateway_url, LARGEST_ANSWER, settings.line_timeout_s)
    batches = Batches(service.open_bucket(BATCHES_BUCKET), lambda seen: changed(seen))
    tools = RunTools(
        instance=service.process.instance,
        batches=batches,
        files=files,
        results=LineResults(service.open_bucket(RESULTS_BUCKET), chunks),
        lending=Lending(service.open_bucket(LENT_BUCKET), settings.line_priority, settings.urgent_priority),
        gateway=gateway,
        slots=slots,
        metrics=metrics,
        line_max_bytes=settings.line_max_bytes,
        most_lines=settings.most_lines,
        keep_days=settings.keep_days,
    )
    runner = Runner(tools, settings.batches_at_once, _now_ms)

    def changed(seen: SeenBatch) -> None:
        runner.take_change(seen)

    work = WorkRunner(
        tools,
        WorkStreams(service.events, replicas=settings.events_replicas, keep_days=settings.keep_days),
        lambda: rollout.compile_current().config.queues,
        _now_ms,
        at_once=settings.lines_at_once,
    )
    bounds = TakenBounds(settings.file_max_bytes, settings.line_max_bytes, settings.most_lines, settings.keep_days)
    asker = Asker(
        service.process.instance,
        JourneyClient(service.journeys),
        rollout.compile_current,
        HeaderRules(settings.identity_headers),
        TrustedProxies(settings.trusted_proxies),
    )
    door = BatchApi(asker, Handlers(files, batches, bounds, _now_ms), settings.longest_window_s)

    async def follow() -> None:
        files.follow()
        batches.follow()

    service.on_start(follow)
    service.every(ROLLOUT_LOOK_S, lambda: rollout.advance_revision(time.monotonic()))
    service.every(LOOK_S, slots.give_out)
    service.run_in_background("batches", runner.run_batches)
    service.run_in_background("work queues", work.run_items)
    service.run_in_background("deletion", runner.run_deletion)
    service.on_stop(work.close)
    service.on_stop(gateway.close)
    service.on_stop(runner.close)
    service.serve(
        HttpServer(
            door.app,
            settings.host,
            settings.port,
            grace_s=settings.drain_timeout_s,
            shared=settings.port_shared,
        )
    )


def _chunks(service: Service[BatchSettings]) -> ChunkStore:
    settings = service.settings
    if settings.files_s3_bucket is not None:
        # Only a service with such a store pays for botocore.
        from pointsman_batch.adapters.s3_chunks import S3Chunks

        return S3Chunks(settings.files_s3_bucket, settings.files_s3_prefix, settings.files_s3_endpoint)
    if settings.files_dir is not None:
        return FolderChunks(settings.files_dir)
    return BucketChunks(service.open_bucket(CHUNKS_BUCKET, max_bytes=settings.files_max_bytes))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


PROGRAM = Program("batch", BatchSettings, build)


def main() -> int:
    """Run the service; returns its exit code."""
    # No client waits for a line: on a shared machine, the processes that serve requests go first.
    os.nice(5)
    return run(PROGRAM)
