"""Which failures move a request on to another endpoint before its first byte has left, and how far. Pure; for engines
and providers alike.

A status of 500 and above says as little about the request as a broken connection does, so another endpoint may answer.
401, 403, and the 404 of a model, an adapter or the whole path may be the client's own error, or that of some engines:
it is the client's when as many endpoints as `DOUBTS` say so, or all that are left. Any other status from 400 on is
usually the client's, so it is when a second endpoint says so, too, and only some requests have this second opinion. The
same holds for an answer without a word: a model may have nothing to say, or its engine may be broken.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from pointsman_contracts.response import Attempt

FAILED: Final = "failed"
"""An answer that isn't one, or a connection that ended before the first byte. All outcomes are those of
`pointsman_contracts.response.Attempt`."""
LIMITED: Final = "limited"
DENIED: Final = "denied"
MISSING: Final = "missing"
EMPTY: Final = "empty"
"""A good status and an answer without a word."""
REPEATING: Final = "repeating"
"""A good status and an answer that ends with one short text over and over. No other endpoint is asked: it has left."""
TIMEOUT: Final = "timeout"
STALLED: Final = "stalled"
DRAINED: Final = "drained"
PREEMPTED: Final = "preempted"
BLAMELESS: Final = frozenset({DRAINED, PREEMPTED})
"""The request left by an order, whether its answer had begun or not. The endpoint is well."""

STARTS: Final = 2
"""Endpoints that may begin to work on one request. An endpoint that got the request and gave no status may have begun;
one that refused the connection, or answered with an error, has not."""
ERRORS: Final = 3
"""Endpoints that may answer one request with an error of their own: the request itself may be what breaks them."""
DOUBTS: Final = 3
"""Endpoints that may answer one request with an error that may be the client's own, or without a word."""
_DOUBTFUL: Final = frozenset({DENIED, MISSING, EMPTY})
_BUSY: Final = 503
_STARTING: Final = frozenset({FAILED, TIMEOUT, STALLED})
_NAMES_MODEL: Final = re.compile(rb"model|adapter|lora", re.IGNORECASE)
_OF_STATUS: Final = {
    401: DENIED,
    403: DENIED,
    429: LIMITED,
    **dict.fromkeys(range(300, 400), FAILED),
    **dict.fromkeys(range(500, 1000), FAILED),
    529: LIMITED,
}
"""3xx: a redirect would show the client an address that isn't for it. HTTP has nothing above 599 (RFC 9110, 15).
529: "overloaded", as Anthropic's API uses it."""


_OF_PATHS: Final = (404, 405)
"""Their bodies tell whether the engine lacks the path, or the client named something unknown."""


def failure_of(status: int) -> str | None:
    """The outcome of an attempt that was answered with this status; None: the endpoint answered the request, if only
    with the client's own error. For 404 see `names_model`."""
    return _OF_STATUS.get(status)


def is_doubtful(status: int) -> bool:
    """Whether this status is usually the client's own error, but may be that of one engine, e.g. of one that was
    started with a shorter context."""
    return 400 <= status < 500 and failure_of(status) is None and status not in _OF_PATHS


def names_model(body: bytes) -> bool:
    """Whether the body of a 404 is about a model or an adapter. Engines that lack a path, or an object of the request,
    name neither."""
    return _NAMES_MODEL.search(body) is not None


class Tries(NamedTuple):
    """The failed attempts of one request, as far as they decide about a further one."""

    started: int = 0
    """Endpoints that may have begun to work on it."""
    errors: int = 0
    """Endpoints that answered with an error of their own, other than that they are busy."""
    doubted: int = 0
    """Endpoints whose answer may be the request's fault."""

    def after(self, outcome: str, status: int | None) -> "Tries":
        """With one more failed attempt."""
        started, errors, doubted = self
        if outcome in _DOUBTFUL:
            return Tries(started, errors, doubted + 1)
        if status is None:
            return Tries(started + (outcome in _STARTING), errors, doubted)
        return Tries(started, errors + (outcome == FAILED and status != _BUSY), doubted)

    @property
    def may_follow(self) -> bool:
        """Whether another endpoint may be asked."""
        return self.started < STARTS and self.errors < ERRORS and self.doubted < DOUBTS


NO_TRIES: Final = Tries()


def weight(outcome: str, status: int | None) -> int:
    """How much a failure says to the client, when every attempt failed. Of equal ones the last is told."""
    if outcome == "unsupported":
        # A fallback that doesn't support the request isn't the reason for its failure.
        return 0
    if status is None:
        return 1
    return 2 if outcome in _DOUBTFUL else 3


def failed_workers(attempts: Iterable[Attempt]) -> set[str]:
    """The workers that failed a request: it doesn't go to them again. One that it left by an order hasn't failed
    it."""
    return {attempt.worker for attempt in attempts if attempt.outcome not in BLAMELESS}
