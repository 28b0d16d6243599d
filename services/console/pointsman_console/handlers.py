"""Answers to the pages' questions, from feeds, buckets and the recorder."""

import re
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, TypeVar

import orjson
from pydantic import JsonValue

from pointsman_console.adapters.app import Failed, LoginAttempt, Opened, TriedRequest, WantedDrain
from pointsman_console.adapters.buckets import Buckets, BucketsUnreadable
from pointsman_console.adapters.drain_orders import DrainSender, OrderUnsent
from pointsman_console.adapters.fleet_feed import FleetFeed
from pointsman_console.adapters.keys import KeyBook, KeysUnreachable
from pointsman_console.adapters.results import Results
from pointsman_console.adapters.rollback import Rollback, RollbackRefused
from pointsman_console.adapters.stream import event
from pointsman_console.domain import story, usage_rows
from pointsman_console.domain.batch_rows import list_batch_rows
from pointsman_console.domain.fleet import COLUMNS
from pointsman_console.domain.level_rows import level_document
from pointsman_console.domain.revision_rows import KeptRevision, listed, shown
from pointsman_console.domain.rights import LONGEST_KEY, Right, digest, right_of
from pointsman_console.domain.sessions import Brake, BrowserSession, OneTimeToken, Sessions
from pointsman_console.domain.standings import standings
from pointsman_contracts.attainment import AttainmentQuery, AttainmentSums
from pointsman_contracts.draining import LONGEST_DRAIN_MS, DrainQuery
from pointsman_contracts.engine_time import EngineTimeQuery, EngineTimeSums
from pointsman_contracts.message import Blob, Message
from pointsman_contracts.regret import RegretQuery, RegretSums
from pointsman_contracts.story import DryRunQuery, Story, StoryQuery
from pointsman_contracts.usage import UsageQuery, UsageSums
from pointsman_core.config import ConfigError
from pointsman_core.request_events import by_edge, read
from pointsman_runtime.bus.bus import Bus
from pointsman_runtime.bus.errors import BusError, NoListener, NoReply
from pointsman_runtime.configuring.config_text import parse
from pointsman_runtime.telling.logs import Log

ANSWER_S: Final = 5.0
DRY_RUN_S: Final = 35.0
"""An edge answers after 30 s at the latest, unless the configuration says otherwise."""
_TRACE: Final = re.compile(r"[0-9a-f]{32}")

M = TypeVar("M", bound=Message)

_log = Log("console")


class Entrance:
    """Logs in and out."""

    def __init__(
        self,
        sessions: Sessions,
        keys: KeyBook,
        token: OneTimeToken,
        clock: Callable[[], float] = time.monotonic,
        *,
        writes: bool,
    ) -> None:
        self._sessions: Final = sessions
        self._keys: Final = keys
        self._token: Final = token
        self._brake: Final = Brake()
        self._clock: Final = clock
        self._writes: Final = writes

    async def log_in(self, given: LoginAttempt) -> Opened:
        """A session for a key with the scope `console`, or for the one-time token. Raises Failed."""
        now = self._clock()
        if not self._brake.may_try(now):
            raise Failed(429, "Too many wrong keys were tried. Try again in a few seconds.")
        if given.token:
            if not self._token.redeem_token(given.token[:LONGEST_KEY]):
                self._brake.count_failure()
                raise Failed(
                    401,
                    "This address opens one session, and was used already. Log in with a key: "
                    "pointsman keys create --tenant ops --scope console",
                )
            return Opened(*self._sessions.open_session(Right("the one-time address", self._writes), None, now))
        right, wanted = await self._check_key(given.key)
        return Opened(*self._sessions.open_session(right, wanted, now))

    async def check_program(self, key: str) -> Right:
        """The right of a program that shows a key with each request. Raises Failed."""
        if not self._brake.may_try(self._clock()):
            raise Failed(429, "Too many wrong keys were tried. Try again in a few seconds.")
        return (await self._check_key(key))[0]

    async def _check_key(self, key: str) -> tuple[Right, str]:
        """The right of a key, and its digest. Raises Failed."""
        wanted = digest(key[:LONGEST_KEY])
        try:
            record = await self._keys.find_key(wanted) if key else None
        except KeysUnreachable as error:
            raise Failed(503, f"API keys can't be checked now: {error}.") from error
        right = None if record is None else right_of(record, time.time_ns() // 1_000_000)
        if right is None:
            # Which of the two it is would tell a stranger that a key exists.
            self._brake.count_failure()
            raise Failed(401, "This key is unknown, has expired, or lacks the scope `console`.")
        return right, wanted

    def log_out(self, cookie: str) -> None:
        """End a session."""
        self._sessions.end_session(cookie)


class Recorder:
    """Questions to the recorder."""

    def __init__(self, bus: Bus) -> None:
        self._bus: Final = bus

    async def ask_story(self, request_id: str, trace: str) -> JsonValue:
        """The story of a request, for each edge that had one with this id. Raises Failed."""
        if not request_id and _TRACE.fullmatch(trace) is None:
            raise Failed(422, "Give the id of a request, or the 32 hexadecimal digits of a trace.")
        answer = await self._ask_service(StoryQuery(request_id=request_id, trace=trace or None), Story)
        read_events = [read(kept.type, kept.body.encode()) for kept in answer.events]
        found = by_edge([event for event in read_events if event is not None])
        if not found:
            behind = f" It is {answer.behind} events behind." if answer.behind else ""
            what = f"request {request_id}" if request_id else f"trace {trace}"
            raise Failed(404, f"The recorder has no event of the {what}.{behind}")
        requests: list[JsonValue] = [story.told(edge, events) for edge, events in found.items()]
        return {"requests": requests, "more": answer.more, "recorder": answer.recorder}

    async def ask_usage(self, asked: UsageQuery) -> JsonValue:
        """Sums of the usage ledger. Raises Failed."""
        return usage_rows.document(await self._ask_service(asked, UsageSums), asked.by)

    async def ask_engine_time(self, asked: EngineTimeQuery) -> JsonValue:
        """Sums of engine time. Raises Failed."""
        return usage_rows.engine_time_document(await self._ask_service(asked, EngineTimeSums), asked.by)

    async def ask_attainment(self, asked: AttainmentQuery) -> JsonValue:
        """Sums of service levels. Raises Failed."""
        return level_document(await self._ask_service(asked, AttainmentSums), asked.by)

    async def ask_regret(self) -> JsonValue:
        """Sums of regret by pool, profile and reason: of the profile that decides, and of shadows. Raises Failed."""
        sums = await self._ask_service(RegretQuery(by=("pool", "profile", "reason")), RegretSums)
        rows: list[JsonValue] = [
            {
                "pool": row.pool or "",
                "profile": row.profile or "",
                "reason": row.reason or "the best choice",
                "choices": row.requests,
                "regret_ms": round(row.regret_us / 1000, 3),
                "mean_regret_ms": round(row.regret_us / 1000 / row.requests, 3) if row.requests else 0.0,
                "cost_ms": round(row.cost_us / 1000, 3),
            }
            for row in sums.rows
        ]
        return {"rows": rows}

    async def try_request(self, entrance: Entrance, key: str, tried: TriedRequest) -> JsonValue:
        """Where a request would go, for the key of an operator: the event as `pointsman explain --json` prints it.
        Raises Failed."""
        await entrance.check_program(key)
        headers, body = tuple(tried.headers.items()), Blob(orjson.dumps(tried.body))
        query = DryRunQuery(path=tried.path, headers=headers, body=body)
        try:
            story = Story.decode(await self._bus.ask(query, timeout=DRY_RUN_S))
        except (NoReply, NoListener) as error:
            raise Failed(503, "No edge answers; a frontend or an epp-adapter of this version must run.") from error
        except BusError as error:
            raise Failed(503, str(error)) from error
        (event,) = story.events
        return {"type": event.type, **orjson.loads(event.body)}

    async def _ask_service(self, question: Message, answer: type[M]) -> M:
        try:
            return answer.decode(await self._bus.ask(question, timeout=ANSWER_S))
        except (NoReply, NoListener) as error:
            raise Failed(
                503, "No recorder answers; decisions, service levels and usage come from one. Start pointsman-recorder."
            ) from error
        except BusError as error:
            raise Failed(503, f"The recorder can't be asked: {error}.") from error


class StoredState:
    """The content of buckets, and its change."""

    def __init__(self, buckets: Buckets, rollback: Rollback | None) -> None:
        """`rollback`: None where nothing may be written."""
        self._buckets: Final = buckets
        self._rollback: Final = rollback

    async def read_limits(self) -> JsonValue:
        """Standings of limits and budgets. Raises Failed."""
        try:
            shards, config = await self._buckets.read_shards(), await self._buckets.read_configuration()
        except BucketsUnreadable as error:
            raise Failed(503, str(error)) from error
        found, count = standings(shards, config, time.time())
        rows: list[JsonValue] = [each.to_document() for each in found]
        return {"rows": rows, "count": count}

    async def list_batches(self) -> JsonValue:
        """Every batch with its progress. Raises Failed."""
        try:
            return list_batch_rows(await self._buckets.read_batches(), time.time_ns() // 1_000_000)
        except BucketsUnreadable as error:
            raise Failed(503, str(error)) from error

    async def list_revisions(self) -> JsonValue:
        """Every stored configuration. Raises Failed."""
        kept = await self._revisions()
        return {"revisions": listed(kept, parse), "writes": self._rollback is not None}

    async def compare_revision(self, number: int, against: int | None) -> JsonValue:
        """One of them, compared with another one. Raises Failed."""
        found = shown(await self._revisions(), number, against, parse)
        if found is None:
            raise Failed(404, f"Revision {number} isn't kept.")
        return found

    async def roll_back(self, session: BrowserSession, number: int) -> JsonValue:
        """Make an earlier configuration current again. Raises Failed."""
        if self._rollback is None:
            raise Failed(403, "This console is read-only: POINTSMAN_WRITES isn't set.")
        if not session.right.may_write:
            raise Failed(403, "This session may not change the configuration: its key lacks the scope `console:write`.")
        stored = next((each for each in await self._revisions() if each.revision == number), None)
        if stored is None:
            raise Failed(404, f"Revision {number} isn't kept.")
        try:
            parse(stored.text)
        except ConfigError as error:
            raise Failed(409, f"This version can't read revision {number}: {error}") from error
        try:
            revision = await self._rollback.store_revision(stored.text)
        except RollbackRefused as error:
            raise Failed(502, str(error)) from error
        _log.warning("configuration_rolled_back", by=session.right.name, to=number, revision=revision)
        return {"revision": revision}

    async def _revisions(self) -> list[KeptRevision]:
        try:
            return [KeptRevision(*each) for each in await self._buckets.list_revisions()]
        except BucketsUnreadable as error:
            raise Failed(503, str(error)) from error


class EngineOrders:
    """Orders about engines, from programs."""

    def __init__(self, entrance: Entrance, orders: DrainSender | None) -> None:
        """`orders`: None where nothing may be written."""
        self._entrance: Final = entrance
        self._orders: Final = orders

    async def drain(self, key: str, wanted: WantedDrain) -> JsonValue:
        """Have engines drain, or take requests again. Raises Failed."""
        right = await self._entrance.check_program(key)
        if self._orders is None:
            raise Failed(403, "This console is read-only: POINTSMAN_WRITES isn't set.")
        if not right.may_write:
            raise Failed(403, "This key may not drain engines: it lacks the scope `console:write`.")
        if bool(wanted.engine) == bool(wanted.host):
            raise Failed(422, "Name an `engine` (its URL or name) or a `host`.")
        query = DrainQuery(
            engine=wanted.engine,
            host=wanted.host,
            pool=wanted.pool,
            within_ms=min(round(wanted.within * 1000), LONGEST_DRAIN_MS),
            undo=wanted.undo,
            force=wanted.force,
            why=wanted.why or f"ordered with the key {right.name}",
        )
        try:
            told = await self._orders.send_order(query)
        except OrderUnsent as error:
            raise Failed(502, str(error)) from error
        if not told.engines:
            raise Failed(404 if told.known or "known" in told.refusal else 409, f"{told.refusal}.")
        _log.warning(
            "drain_ordered", by=right.name, undo=wanted.undo, engines=", ".join(each.url for each in told.engines)
        )
        return {
            "engines": [
                {"pool": each.pool, "worker": each.worker, "url": each.url, "unserved": each.warning}
                for each in told.engines
            ]
        }


async def result_of(results: Results, name: str) -> JsonValue:
    """The document of a file. Raises Failed."""
    try:
        return await results.read_result(name)
    except LookupError as error:
        raise Failed(404, f"The folder of results has no file {name!r}.") from error
    except (ValueError, OSError) as error:
        raise Failed(422, f"{name} can't be read: {type(error).__name__}.") from error


async def fleet_events(feed: FleetFeed) -> AsyncGenerator[bytes]:
    """All engines, then their changes."""
    columns: JsonValue = list(COLUMNS)
    async with feed.watch_pools():
        sent = -1
        while True:
            ticked = feed.ticked
            await ticked.wait()
            changes = feed.table.changes_since(max(sent, 0))
            if sent < 0:
                changes["columns"] = columns
            if changes["version"] != sent or sent < 0:
                sent = feed.table.version
            yield event("fleet", changes)
