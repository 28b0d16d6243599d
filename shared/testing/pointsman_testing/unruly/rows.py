"""The rows of the matrix: misbehaviours of engines, and the words by which an operator should learn of each."""

from enum import StrEnum
from typing import Final

import msgspec

from pointsman_testing.unruly.behaviour import GOOD, Behaviour


class RowKind(StrEnum):
    """Which of the laws a row is held to."""

    FAILS = "fails"
    """Requests end badly there, or not at all."""
    LEAVES = "leaves"
    """It serves, and asks for no new requests."""
    SLOW = "slow"
    """It serves, later than others."""
    SERVES = "serves"
    """Requests are served as ever; something that it says is wrong."""


class MisbehaviourRow(msgspec.Struct, frozen=True):
    """One misbehaviour."""

    name: str
    kind: RowKind
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
        return self.kind in (RowKind.SERVES, RowKind.LEAVES)


def _status(status: int, told: str = "", source: str = "") -> MisbehaviourRow:
    behaviour = Behaviour(status=status)
    return MisbehaviourRow(
        f"status {status}",
        RowKind.FAILS,
        behaviour,
        told=told or str(status),
        clients=400 <= status < 429,
        passes=0.0,
        source=source,
    )


def _page(name: str, behaviour: Behaviour, told: str, source: str = "") -> MisbehaviourRow:
    return MisbehaviourRow(name, RowKind.SERVES, behaviour, told, bad_s=5.0, source=source)


_NO_ANSWER: Final = r"first byte|no answer|answers nothing|stall|hang|hung|not answer|unanswered"
_CUT: Final = r"cut|clos|broke|reset|failed"
_GONE: Final = r"unreach|refused|connect|not answer|silent"
_LOAD: Final = r"metrics|load|gauge|sample|signal"

GROUPS: Final[dict[str, tuple[MisbehaviourRow, ...]]] = {
    "answers errors at once": (
        _status(500, "500", "vllm-project/vllm #39863"),
        _status(503),
        _status(429),
        _status(529),
        _status(302),
        MisbehaviourRow(
            "half of the requests get 500", RowKind.FAILS, Behaviour(status=500, part=0.5), "500", passes=0.5
        ),
    ),
    "refuses requests that its peers answer": (
        _status(401, "401|denied"),
        _status(403, "403|denied"),
        _status(404, "404", "vllm-project/aibrix #1095"),
        _status(400, "denied|refus|400", "smg-project/smg PR #2565"),
        MisbehaviourRow(
            "lists another model",
            RowKind.FAILS,
            Behaviour(models=("other",)),
            "model|404|other",
            clients=True,
            passes=0.0,
        ),
        MisbehaviourRow("lists no model", RowKind.FAILS, Behaviour(models=()), "model|404", clients=True, passes=0.0),
    ),
    "answers, and says nothing": (
        MisbehaviourRow(
            "answers without a word",
            RowKind.FAILS,
            Behaviour(words="none"),
            "word",
            clients=True,
            source="vllm-project/vllm #41902",
        ),
        MisbehaviourRow(
            "becomes one token over and over",
            RowKind.FAILS,
            Behaviour(words="one"),
            "over and over",
            clients=True,
            tokens=36,
            source="vllm-project/vllm #51039",
        ),
    ),
    "takes requests and answers nothing": (
        MisbehaviourRow(
            "hangs before the head",
            RowKind.FAILS,
            Behaviour(hang="head"),
            _NO_ANSWER,
            source="vllm-project/vllm #39863",
        ),
        MisbehaviourRow(
            "hangs before the head and looks idle",
            RowKind.FAILS,
            Behaviour(hang="head", running=0, waiting=0, kv_usage=0),
            _NO_ANSWER,
            source="vllm-project/vllm #2731",
        ),
        MisbehaviourRow(
            "hangs before the head and looks full",
            RowKind.FAILS,
            Behaviour(hang="head", running=64, waiting=60, kv_usage=1),
            _NO_ANSWER,
            source="llm-d/llm-d-router PR #2066",
        ),
        MisbehaviourRow("frozen", RowKind.FAILS, Behaviour(frozen=True), rf"{_GONE}|{_NO_ANSWER}"),
    ),
    "stops within answers": (
        MisbehaviourRow("hangs after the head", RowKind.FAILS, Behaviour(hang="body"), _NO_ANSWER),
        MisbehaviourRow(
            "hangs after the first piece",
            RowKind.FAILS,
            Behaviour(hang="event"),
            rf"{_NO_ANSWER}|progress|pause|silent",
        ),
    ),
    "ends or refuses connections before any answer": (
        MisbehaviourRow("closes before the head", RowKind.FAILS, Behaviour(cut="head"), _CUT, passes=0.0),
        MisbehaviourRow("resets before the head", RowKind.FAILS, Behaviour(cut="head", reset=True), _CUT, passes=0.0),
        MisbehaviourRow(
            "answers what isn't HTTP", RowKind.FAILS, Behaviour(garbage=True), rf"{_CUT}|HTTP|answer", passes=0.0
        ),
        MisbehaviourRow("process gone", RowKind.FAILS, Behaviour(listens=False), _GONE, passes=0.0),
        MisbehaviourRow(
            "accepts no connection", RowKind.FAILS, Behaviour(accepts=False), rf"{_GONE}|{_NO_ANSWER}", passes=0.0
        ),
    ),
    "ends connections within answers": (
        MisbehaviourRow("closes after the head", RowKind.FAILS, Behaviour(cut="body"), _CUT, passes=0.0),
        MisbehaviourRow("closes after the first piece", RowKind.FAILS, Behaviour(cut="event"), _CUT, passes=0.0),
        MisbehaviourRow(
            "resets after the first piece", RowKind.FAILS, Behaviour(cut="event", reset=True), _CUT, passes=0.0
        ),
    ),
    "ends idle connections": (
        MisbehaviourRow(
            "closes idle connections", RowKind.SERVES, Behaviour(idle_close_s=0.15), source="llm-d/llm-d #1564"
        ),
        MisbehaviourRow(
            "resets idle connections",
            RowKind.SERVES,
            Behaviour(idle_close_s=0.15, reset=True),
            source="kserve/kserve #5446",
        ),
    ),
    "is slow, or stands still for 3 s": (
        MisbehaviourRow(
            "frozen for 3 s",
            RowKind.SLOW,
            Behaviour(frozen=True),
            bad_s=3.0,
            tokens=100,
            source="vllm-project/vllm #24910",
        ),
        MisbehaviourRow("first byte 3 s late", RowKind.SLOW, Behaviour(late_s=3.0)),
        MisbehaviourRow("trickles", RowKind.SLOW, Behaviour(trickle_s=0.7)),
        MisbehaviourRow("reads a new connection after 1 s", RowKind.SLOW, Behaviour(accept_s=1.0)),
    ),
    "restarts": (
        MisbehaviourRow("restarts empty", RowKind.SERVES, bad_s=4.0, restart_s=10.0, source="llm-d/llm-d-router #2853"),
        MisbehaviourRow("restarts every 1.5 s", RowKind.SERVES, restart_s=1.5),
    ),
    "isn't ready, and has work": (
        MisbehaviourRow(
            "drains, with a pause in each stream", RowKind.LEAVES, Behaviour(health=503, pause_s=6.5), "503|drain|ready"
        ),
        MisbehaviourRow("health 500", RowKind.LEAVES, Behaviour(health=500), "500|health|ready"),
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
