"""JetStream as `pointsman doctor` sees it: the stream of events, and whether the disk accepts writes."""

from typing import Final

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import StorageType
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError, ServerError, ServiceUnavailableError

from pointsman_cli.doctor.facts import SILENT, StreamFacts
from pointsman_contracts.subjects import OWED_SUBJECTS
from pointsman_runtime.jetstream.errors import jetstream_words
from pointsman_runtime.jetstream.stores import EVENT_STREAM, PROBE_STREAM

_TINY_BYTES: Final = 1024

Failure = (JetStreamError, nats.errors.Error, TimeoutError)


async def usable(js: JetStreamContext) -> str | None:
    """Why JetStream can't be used; None when it can."""
    try:
        await js.account_info()
    except Failure as error:
        return SILENT if isinstance(error, TimeoutError) else jetstream_words(error)
    return None


async def disk_problem(js: JetStreamContext) -> str | None:
    """Why a stream on disk can't be made; None when one can, or when this login may not."""
    try:
        await js.add_stream(  # pyright: ignore[reportUnknownMemberType] - untyped in nats-py
            name=PROBE_STREAM, subjects=[PROBE_STREAM], storage=StorageType.FILE, max_bytes=_TINY_BYTES
        )
        await js.delete_stream(PROBE_STREAM)
    except ServiceUnavailableError as error:
        return jetstream_words(error)
    except ServerError as error:
        return error.description or str(error)
    except Failure:
        return None
    return None


async def last_event(js: JetStreamContext) -> int | None:
    """Sequence of the last event in the stream; None when that isn't known."""
    try:
        return (await js.stream_info(EVENT_STREAM)).state.last_seq
    except Failure:
        return None


async def stream(js: JetStreamContext, before: int | None, heard: int) -> StreamFacts | None:
    """The stream of events. `before` was its last sequence when the first of `heard` events came. None when the stream
    doesn't exist or the server doesn't report it."""
    try:
        info = await js.stream_info(EVENT_STREAM)
    except (NotFoundError, JetStreamError, TimeoutError):
        return None
    return StreamFacts(
        messages=info.state.messages,
        used_bytes=info.state.bytes,
        max_bytes=info.config.max_bytes or 0,
        max_age_s=info.config.max_age or 0.0,
        replicas=info.config.num_replicas or 1,
        lags=await _lags(js),
        takes_again=OWED_SUBJECTS in (info.config.subjects or ()),
        unkept=heard if before is not None and info.state.last_seq <= before else 0,
    )


async def _lags(js: JetStreamContext) -> dict[str, int] | None:
    try:
        readers = await js.consumers_info(EVENT_STREAM)
    except (JetStreamError, TimeoutError):
        return None
    return {reader.name: reader.num_pending or 0 for reader in readers if reader.config.durable_name}
