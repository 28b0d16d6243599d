"""One worker: the facts that it registered, its last load report, and the reservations on its books."""

import re
from collections import deque
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from pointsman_contracts.reply import ChosenEndpoint
from pointsman_contracts.scheduling import ReservationChange
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration
from pointsman_core.engine_url import unix_address
from pointsman_plugins.scheduling.outliers import Standing
from pointsman_plugins.scheduling.request import RequestKey

NEVER: Final = float("-inf")

PREFILL: Final = 1
DECODE: Final = 2
ENCODE: Final = 4
ROLES: Final = {"prefill": PREFILL, "decode": DECODE, "encode": ENCODE, "both": PREFILL | DECODE}

OPAQUE: Final = "opaque"
"""Kind of an engine that reports no load."""

VISIBLE_AFTER_S: Final = 0.05
"""A request chosen less than this before a load report came in may be missing from it: it was still on its way
to the engine, or the report on its way here. One that ended less than this before may still be in it."""

STANDING_S: Final = 10.0
"""How long an engine's counters of work may stand before the load that it reports beyond the books isn't believed. vLLM
goes on to report the requests that ran when all of them were aborted, until its next step (vllm-project/vllm #29928):
without a request it never has one."""
_HELD: Final = 0.5
"""Used part of the KV cache that an engine without requests may report and still count as empty."""


def role_bits(role: str) -> int:
    """The roles that a registration names: one of `ROLES`, or several joined by hyphens; others count for nothing."""
    bits = 0
    for part in re.split(r"[-+,]", role):
        bits |= ROLES.get(part.strip(), 0)
    return bits


HoldKey = tuple[str, str, str]
"""Edge, request id and leg of a reservation."""


class Hold(Struct, eq=False):
    """One reservation."""

    change: ReservationChange
    """As its scheduler made it, with the `op` `reserve`."""
    worker: "Worker"
    at: float
    """Monotonic time at which it was put on these books."""
    scheduler: str = ""
    """Who made it."""
    confirmed: bool = False
    """The first byte of the answer came."""
    answer_tokens: int | None = None
    """Tokens of the whole answer; None until it is complete, or when its edge didn't report them."""
    asked_at: float = NEVER
    predicted_ms: float = 0.0
    """To the first token; 0 for a part of the work."""
    step_ms: float = 0.0
    """Predicted for each further token."""
    stalled: bool = False
    """It has waited for far longer than predicted, and counted as a failure of its worker."""
    moved: bool = False
    """It was moved here from a worker that didn't answer: it isn't moved again."""
    asked_to_move: int = 0
    """How often its edge was asked to move it."""
    fetch_ms: float = 0.0
    """Predicted until what it fetches from below the worker's device is there."""
    load_ms: float = 0.0
    """Predicted until the worker has loaded its adapter; 0 where that is taken to be loaded."""
    handed_ms: float | None = None
    """For a leg that computed the prompt: how long ago that was when the answer began; None where that is unknown."""

    request: RequestKey = "", ""
    key: HoldKey = "", "", ""
    """Its name among all reservations."""

    def __post_init__(self) -> None:
        change = self.change
        self.request = change.edge, change.request_id
        self.key = change.edge, change.request_id, change.leg

    def with_op(self, op: str) -> ReservationChange:
        """The change as published to other schedulers; `op` as in `ReservationChange`."""
        return self.change if op == "reserve" else replace(self.change, op=op)


class Worker:
    """One life of an engine. A restart (`boot_id` changes) makes a new one.

    Load figures of the engine are a report old. `load` corrects them by what this scheduler knows to have happened
    since: requests chosen that no report can show, and requests that ended, also those that the report still shows.
    """

    __slots__ = (
        "address",
        "answered_at",
        "answered_sent",
        "capacity_tokens",
        "context_tokens",
        "departed_at",
        "ended_at",
        "ended_lately",
        "ended_running",
        "ended_waiting",
        "endpoint",
        "excused_until",
        "heard",
        "holds",
        "host",
        "kv_told",
        "lacking",
        "life",
        "lora_holds",
        "name",
        "opaque",
        "open",
        "prefill_tokens",
        "present",
        "registration",
        "report",
        "roles",
        "row",
        "seen_until",
        "sent_at",
        "standing",
        "surplus_since",
        "unseen_running",
        "unseen_tokens",
        "unseen_waiting",
        "url",
        "worked",
        "worked_at",
    )  # fmt: skip

    def __init__(self, registration: WorkerRegistration) -> None:
        self.name: Final = registration.worker
        self.row = -1
        self.life = -1
        """Its number in the prefix index."""
        self.kv_told = ""
        """Boot id of the life for which its agent has reported the whole KV cache; empty for none."""
        self.present = True
        """False while it isn't registered."""
        self.departed_at = NEVER
        self.excused_until = NEVER
        """Until then its silence doesn't count: no worker was heard."""
        self.report: WorkerLoad | None = None
        self.heard = NEVER
        """Monotonic time at which the last report came in."""
        self.standing = Standing()
        self.sent_at = NEVER
        """When a request was last sent to it."""
        self.answered_at = NEVER
        """When it last began, or ended, an answer."""
        self.ended_at = NEVER
        """When it last ended an answer."""
        self.answered_sent = NEVER
        """When the last of the requests was sent that it has begun to answer."""
        self.lacking: dict[str, float] = {}
        """Models and adapters that it answers 404 for though its peers serve them, and until when it gets no requests
        for them."""
        self.worked: int | None = None
        """Its engine's counter of work as last reported; None when it has none that moves with each step."""
        self.worked_at = NEVER
        """When that number last changed, or the engine was empty, its cache too."""
        self.open = 0
        """Requests on the books."""
        self.prefill_tokens = 0
        """Prompt tokens still to be computed by requests that haven't answered yet."""
        self.context_tokens = 0
        """Prompt tokens of all requests on the books."""
        self.holds: dict[HoldKey, Hold] = {}
        """Reservations by request id and leg, oldest first."""
        self.lora_holds: dict[str, int] = {}
        self.seen_until = NEVER
        """Reservations made later than this (monotonic time) can't be in the last report."""
        self.unseen_waiting = 0
        self.unseen_running = 0
        self.unseen_tokens = 0
        self.ended_waiting = 0
        self.ended_running = 0
        self.ended_lately: deque[float] = deque()
        """Monotonic times at which requests left the books, oldest first: those that the next report may still show."""
        self.surplus_since = NEVER
        """Since when the books hold more than the engine reports; NEVER when they don't."""
        self.register(registration)

    def register(self, registration: WorkerRegistration) -> None:
        """Take other facts over. ValueError when the URL isn't one; then nothing has changed."""
        host = address = ""
        if unix_address(registration.url) is None:
            parts = urlsplit(registration.url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            host = parts.hostname or ""
            if parts.scheme not in ("http", "https") or not host:
                raise ValueError(
                    f"worker {registration.worker!r} registered {registration.url!r}, which is no URL of an API"
                )
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.registration = registration
        self.url = registration.url
        # Nothing names a Unix socket by host and port: a proxy's subset can't, and headers leave it out.
        self.host = host
        self.address = address
        self.roles = role_bits(registration.role)
        self._judge_load()
        self.capacity_tokens = max(0, (registration.kv_blocks or 0) * (registration.block_tokens or 0))
        """Tokens that the KV cache holds; 0 when the engine didn't report it."""
        self.endpoint = ChosenEndpoint(
            worker=registration.worker,
            url=registration.url,
            rank=registration.rank,
            rank_field=registration.rank_field,
        )

    @property
    def tells(self) -> bool:
        """Whether its engine reports the content of its KV cache, and no part of that is missing."""
        return self.kv_told == self.registration.boot_id != ""

    @property
    def state(self) -> str:
        return self.report.state if self.report is not None else "unknown"

    @property
    def reports_load(self) -> bool:
        unknown = self.report is not None and self.report.load_unknown != ""
        return not unknown and self.registration.engine != OPAQUE

    def describe_unknown_load(self) -> str:
        """Why its load is unknown though its engine is of a kind that reports it; empty where it isn't."""
        if self.reports_load:
            return "its counters of work stand" if self.opaque else ""
        return "" if self.report is None else self.report.load_unknown

    def _judge_load(self) -> None:
        self.opaque = not self.reports_load or self._reports_old_load()
        """Its reports show only whether it is alive: the books stand for its load."""

    def _reports_old_load(self) -> bool:
        """Whether it reports load beyond the books though it has done no work for long."""
        report = self.report
        if report is None or self.worked is None or self.heard - self.worked_at <= STANDING_S:
            return False
        requests = report.running + report.waiting
        return requests > self.open or (not requests and report.kv_usage > _HELD)

    def load(self) -> tuple[int, int, float]:
        """Requests waiting, sequences running, and the used part of the KV cache in [0,1]."""
        if self.opaque:
            return self.open, self.open, 0.0
        report = self.report
        if report is None:
            waiting, running, kv_usage = self.unseen_waiting, self.unseen_running, 0.0
        else:
            waiting = report.waiting - self.ended_waiting
            running = report.running - self.ended_running
            if waiting < 0 or running < 0:
                # The engine may have had a request in its batch that the books still had as waiting, and the reverse.
                waiting, running = max(0, waiting + min(0, running)), max(0, running + min(0, waiting))
            waiting += self.unseen_waiting
            running += self.unseen_running
            kv_usage = report.kv_usage
        if self.unseen_tokens and self.capacity_tokens:
            kv_usage = min(1.0, kv_usage + self.unseen_tokens / self.capacity_tokens)
        return waiting, running, kv_usage

    def hear(self, report: WorkerLoad, now: float) -> None:
        """Take a load report in. After the engine's own recovery, seen by its agent, an ejected worker is tried at
        once."""
        if report.state == "serving" and self.state in ("unreachable", "not_ready"):
            self.standing.retry_at = min(self.standing.retry_at, now)
        if not (0.0 <= report.kv_usage <= 1.0 and report.running >= 0 and report.waiting >= 0):
            report = _possible(report)
        self.report = report
        self.heard = now
        busy = report.running or report.waiting or self.open or report.kv_usage > _HELD
        if report.worked_tokens != self.worked or not busy:
            self.worked, self.worked_at = report.worked_tokens, now
        self._judge_load()
        self.ended_waiting = self.ended_running = 0
        self.unseen_waiting = self.unseen_running = self.unseen_tokens = 0
        self.seen_until = now - VISIBLE_AFTER_S - report.age_ms / 1000
        for hold in reversed(self.holds.values()):
            if hold.at <= self.seen_until:
                break
            self.unseen_tokens += hold.change.uncached_tokens
            if hold.confirmed:
                self.unseen_running += 1
            else:
                self.unseen_waiting += 1
        self._discount_ended(report)
        if self.open > report.running + report.waiting and not self.opaque:
            self.surplus_since = now if self.surplus_since == NEVER else self.surplus_since
        else:
            self.surplus_since = NEVER

    def _discount_ended(self, report: WorkerLoad) -> None:
        """Load that the report shows beyond the books belongs to requests that ended while it was on its way."""
        ended = self.ended_lately
        while ended and ended[0] <= self.seen_until:
            ended.popleft()
        if ended:
            visible = self.open - self.unseen_waiting - self.unseen_running
            self.ended_running = max(0, min(len(ended), report.waiting + report.running - visible))

    def put(self, hold: Hold) -> None:
        """Put a reservation on the books."""
        self.holds[hold.key] = hold
        self.open += 1
        self.context_tokens += hold.change.prompt_tokens
        confirmed, uncached = hold.confirmed, hold.change.uncached_tokens
        if not confirmed:
            self.prefill_tokens += uncached
        if hold.change.lora is not None:
            self.lora_holds[hold.change.lora] = self.lora_holds.get(hold.change.lora, 0) + 1
        if hold.at > self.seen_until:
            self.unseen_tokens += uncached
            if confirmed:
                self.unseen_running += 1
            else:
                self.unseen_waiting += 1

    def confirm(self, hold: Hold) -> None:
        """The first byte of the answer came: the prompt is computed and the sequence runs."""
        self.prefill_tokens -= hold.change.uncached_tokens
        if hold.at > self.seen_until:
            self.unseen_waiting -= 1
            self.unseen_running += 1
        hold.confirmed = True

    def take_off(self, hold: Hold, now: float, answered: bool) -> None:
        """Take a reservation off the books. `answered`: its whole answer came, also where `confirm` wasn't called."""
        del self.holds[hold.key]
        self.open -= 1
        self.context_tokens -= hold.change.prompt_tokens
        confirmed, uncached = hold.confirmed, hold.change.uncached_tokens
        if not confirmed:
            self.prefill_tokens -= uncached
        if hold.change.lora is not None:
            left = self.lora_holds[hold.change.lora] - 1
            if left:
                self.lora_holds[hold.change.lora] = left
            else:
                del self.lora_holds[hold.change.lora]
        ended = self.ended_lately
        ended.append(now)
        if now - ended[0] > VISIBLE_AFTER_S:
            ended.popleft()
        if hold.at > self.seen_until:
            self.unseen_tokens -= uncached
            if confirmed:
                self.unseen_running -= 1
            else:
                self.unseen_waiting -= 1
        elif confirmed or answered:
            self.ended_running += 1
        else:
            self.ended_waiting += 1


def _possible(report: WorkerLoad) -> WorkerLoad:
    """The report without impossible figures: engines have reported NaN and negative numbers."""
    kv_usage = min(1.0, max(0.0, report.kv_usage)) if report.kv_usage == report.kv_usage else 0.0
    return replace(report, kv_usage=kv_usage, running=max(0, report.running), waiting=max(0, report.waiting))
