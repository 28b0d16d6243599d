"""How an engine behaves, as data."""

from typing import Literal

import msgspec

Exposition = Literal[
    "true", "renamed", "nan", "negative", "huge", "empty", "page", "torn", "ageless", "two_lives", "binary"
]
"""The form of `/metrics`: `renamed`: the gauge of waiting requests has another name, as after an upgrade; `ageless`:
without the time of the start; `two_lives`: the time of the start alternates, as behind a balancer."""
Reported = Literal["true", "absent", "negative", "huge", "text"]
"""The form of the usage that an answer reports."""


class Behaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The default is a good engine. Times are in seconds."""

    part: float = 1.0
    """Part of the requests, evenly spread, that the faults of requests below apply to."""
    status: int = 200
    """Answered at once to requests of the API."""
    garbage: bool = False
    """Answers requests of the API with bytes that aren't HTTP."""
    late_s: float = 0.0
    """Added to the time before the head of an answer."""
    hang: Literal["", "head", "body", "event"] = ""
    """Before the head, after it, or after the first event or half of a document, a request hangs until the engine is
    told to behave otherwise; then its answer goes on."""
    cut: Literal["", "head", "body", "event"] = ""
    """At this place the connection ends."""
    reset: bool = False
    """Connections end with RST, not FIN."""
    trickle_s: float = 0.0
    """Added to the time between two events, and to that between the halves of a document."""
    pause_s: float = 0.0
    """One pause in the middle of a stream."""

    listens: bool = True
    """False: the process is gone. Its connections end, and new ones are refused."""
    accepts: bool = True
    """False: idle connections end, and new ones are established only as far as the kernel does it, which holds a few of
    them."""
    accept_s: float = 0.0
    """Until a new connection is read from."""
    idle_close_s: float | None = None
    """A connection ends when it is idle for this long after a request."""
    frozen: bool = False
    """Nothing moves on any connection, as while one thread computes for all of them. Requests go on afterwards."""

    health: int = 200
    health_s: float = 0.0
    """How long `/health` takes."""
    metrics: int = 200
    metrics_s: float = 0.0
    flap_s: float = 0.0
    """Health and metrics are good and as above in turn, for this long each. 0: always as above."""
    exposition: Exposition = "true"

    running: float | None = None
    """Reported instead of the true number."""
    waiting: float | None = None
    kv_usage: float | None = None
    words: Literal["", "none", "one"] = ""
    """Answers without a word; or with one token over and over until their limit, from their second token on."""
    models: tuple[str, ...] | None = None
    """Listed by `/v1/models` instead of the served one; requests for others get 404."""
    usage: Reported = "true"
    cached_tokens: int | None = None
    """Reported in the usage of every answer."""

    def say_token(self, number: int) -> tuple[str, str]:
        """The token of this number, and why an answer ends behind it."""
        if self.words == "one":
            return "!" if number else "t ", "length"
        return "" if self.words else "t ", "stop"


GOOD = Behaviour()
