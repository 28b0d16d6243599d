"""The rows of the matrix: misbehaviours of engines, and the words by which an operator should learn of each."""

from enum import StrEnum
from typing import Final

import msgspec

from pointsman_testing.unruly.behaviour import GOOD, Behaviour


class Kind(StrEnum):
    """Which of the laws a row is held to."""

    FAILS = "fails"
    """Requests end badly there, or not at all."""
    LEAVES = "leaves"
    """It serves, and asks for no new requests."""
    SLOW = "slow"
    """It serves, later than others."""
    SERVES = "serves"
    """Requests are served as ever; something that it says is wrong."""


class Row(msgspec.Struct, frozen=True):
    """One misbehaviour."""

    name: str
    kind: Kind
    behaviour: Behaviour = GOOD
    told: str = ""
    """Regular expression: the reason beside the engine's name in a finding of `pointsman doctor`. Empty: none is
    due."""
    clients: bool = False
    """It may as well be the clients' fault where all engines say so: then no engine is blamed."""
    passes: float = 1.0
    """Part of the requests that are served when all engines are so and a balancer sends each to the next one."""
    bad_s: float = 8.0
    """How long the engine behaves so."""
    tokens: int = 4
    """Of each answer."""
    restart_s: float | None = None
    """The engine is restarted at the beginning, and again after this time."""
    source: str = ""
    """A public report of this."""

    @property
    def only_signals(self) -> bool:
        """Whether requests are served as by a good engine."""
        return self.kind in (Kind.SERVES, Kind.LEAVES)


def _status(status: int, told: str = "", source: str = "") -> Row:
    behaviour = Behaviour(status=status)
    return Row(
        f"status {status}",
        Kind.FAILS,
        behaviour,
        told=told or str(status),
        clients=status in (401, 403, 404),
        passes=0.0,
        source=source,
    )


def _page(name: str, behaviour: Behaviour, told: str, source: str = "") -> Row:
    return Row(name, Kind.SERVES, behaviour, told, bad_s=5.0, source=source)


_NO_ANSWER: Final = r"first byte|no answer|answers nothing|stall|hang|hung|not answer|unanswered"
_CUT: Final = r"cut|clos|broke|reset|failed"
_GONE: Final = r"unreach|refused|connect|not answer|silent"
_LOAD: Final = r"metrics|load|gauge|sample|signal"

GROUPS: Final[dict[str, tuple[Row, ...]]] = {
    "answers errors at once": (
        _status(500, "500", "vllm-project/vllm #39863"),
        _status(503),
        _status(429),
        _status(529),
        _status(302),
        Row("half of the requests get 500", Kind.FAILS, Behaviour(status=500, part=0.5), "500", passes=0.5),
    ),
    "refuses requests that its peers answer": (
        _status(401, "401|denied"),
        _status(403, "403|denied"),
        _status(404, "404", "vllm-project/aibrix #1095"),
        Row(
            "lists another model", Kind.FAILS, Behaviour(models=("other",)), "model|404|other", clients=True, passes=0.0
        ),
        Row("lists no model", Kind.FAILS, Behaviour(models=()), "model|404", clients=True, passes=0.0),
    ),
    "takes requests and answers nothing": (
        Row("hangs before the head", Kind.FAILS, Behaviour(hang="head"), _NO_ANSWER, source="vllm-project/vllm #39863"),
        Row(
            "hangs before the head and looks idle",
            Kind.FAILS,
            Behaviour(hang="head", running=0, waiting=0, kv_usage=0),
            _NO_ANSWER,
            source="vllm-project/vllm #2731",
        ),
        Row(
            "hangs before the head and looks full",
            Kind.FAILS,
            Behaviour(hang="head", running=64, waiting=60, kv_usage=1),
            _NO_ANSWER,
            source="llm-d/llm-d-router PR #2066",
        ),
        Row("frozen", Kind.FAILS, Behaviour(frozen=True), rf"{_GONE}|{_NO_ANSWER}"),
    ),
    "stops within answers": (
        Row("hangs after the head", Kind.FAILS, Behaviour(hang="body"), _NO_ANSWER),
        Row("hangs after the first piece", Kind.FAILS, Behaviour(hang="event"), rf"{_NO_ANSWER}|progress|pause|silent"),
    ),
    "ends or refuses connections before any answer": (
        Row("closes before the head", Kind.FAILS, Behaviour(cut="head"), _CUT, passes=0.0),
        Row("resets before the head", Kind.FAILS, Behaviour(cut="head", reset=True), _CUT, passes=0.0),
        Row("answers what isn't HTTP", Kind.FAILS, Behaviour(garbage=True), rf"{_CUT}|HTTP|answer", passes=0.0),
        Row("process gone", Kind.FAILS, Behaviour(listens=False), _GONE, passes=0.0),
        Row("accepts no connection", Kind.FAILS, Behaviour(accepts=False), rf"{_GONE}|{_NO_ANSWER}", passes=0.0),
    ),
    "ends connections within answers": (
        Row("closes after the head", Kind.FAILS, Behaviour(cut="body"), _CUT, passes=0.0),
        Row("closes after the first piece", Kind.FAILS, Behaviour(cut="event"), _CUT, passes=0.0),
        Row("resets after the first piece", Kind.FAILS, Behaviour(cut="event", reset=True), _CUT, passes=0.0),
    ),
    "ends idle connections": (
        Row("closes idle connections", Kind.SERVES, Behaviour(idle_close_s=0.15), source="llm-d/llm-d #1564"),
        Row(
            "resets idle connections",
            Kind.SERVES,
            Behaviour(idle_close_s=0.15, reset=True),
            source="kserve/kserve #5446",
        ),
    ),
    "is slow, or stands still for 3 s": (
        Row(
            "frozen for 3 s",
            Kind.SLOW,
            Behaviour(frozen=True),
            bad_s=3.0,
            tokens=100,
            source="vllm-project/vllm #24910",
        ),
        Row("first byte 3 s late", Kind.SLOW, Behaviour(late_s=3.0)),
        Row("trickles", Kind.SLOW, Behaviour(trickle_s=0.7)),
        Row("reads a new connection after 1 s", Kind.SLOW, Behaviour(accept_s=1.0)),
    ),
    "restarts": (
        Row("restarts empty", Kind.SERVES, bad_s=4.0, restart_s=10.0, source="llm-d/llm-d-router #2853"),
        Row("restarts every 1.5 s", Kind.SERVES, restart_s=1.5),
    ),
    "isn't ready, and has work": (
        Row("drains, with a pause in each stream", Kind.LEAVES, Behaviour(health=503, pause_s=6.5), "503|drain|ready"),
        Row("health 500", Kind.LEAVES, Behaviour(health=500), "500|health|ready"),
    ),
    "has a health page that is late, missing or in doubt": (
        _page("health 404", Behaviour(health=404), ""),
        _page("health takes 7 s", Behaviour(health_s=7.0), "health", "sgl-project/sglang #22511"),
        _page("health flaps", Behaviour(health=503, flap_s=0.7), ""),
    ),
    "has metrics that are late, missing or wrong": (
        _page("metrics take 0.8 s", Behaviour(metrics_s=0.8), "", "llm-d/llm-d-router #2408"),
        _page("metrics take 5 s", Behaviour(metrics_s=5.0), _LOAD),
        _page("metrics 503", Behaviour(metrics=503), _LOAD),
        _page("metrics 404", Behaviour(metrics=404), _LOAD),
        _page("metrics flap", Behaviour(metrics=503, flap_s=0.7), ""),
        _page("gauge renamed", Behaviour(exposition="renamed"), _LOAD, "vllm-project/production-stack #617"),
        _page("metrics NaN", Behaviour(exposition="nan"), _LOAD),
        _page("metrics negative", Behaviour(exposition="negative"), ""),
        _page("metrics huge", Behaviour(exposition="huge"), ""),
        _page("metrics empty", Behaviour(exposition="empty"), _LOAD),
        _page("metrics are a web page", Behaviour(exposition="page"), _LOAD),
        _page("metrics torn", Behaviour(exposition="torn"), ""),
        _page("metrics binary", Behaviour(exposition="binary"), _LOAD),
        _page("no start time", Behaviour(exposition="ageless"), ""),
        _page(
            "two start times in turn", Behaviour(exposition="two_lives"), "balancer|start", "production-stack PR #586"
        ),
    ),
    "lies about its load": (
        _page("looks full", Behaviour(running=64, waiting=500, kv_usage=1.0), ""),
        _page("looks idle", Behaviour(running=0, waiting=0, kv_usage=0.0), ""),
    ),
    "lies about usage": (
        _page("usage absent", Behaviour(usage="absent"), ""),
        _page("usage negative", Behaviour(usage="negative"), ""),
        _page("usage huge", Behaviour(usage="huge"), ""),
        _page("usage is text", Behaviour(usage="text"), ""),
        _page("cached tokens huge", Behaviour(cached_tokens=10**12), ""),
        _page("cached tokens negative", Behaviour(cached_tokens=-7), ""),
    ),
}
"""An engine that …: by the words that tables have for them."""

ROWS: Final = tuple(row for rows in GROUPS.values() for row in rows)
