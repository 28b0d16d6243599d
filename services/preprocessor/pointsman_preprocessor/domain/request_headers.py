"""Reads a request's headers: options set by the client, and facts from a trusted proxy.

The edge drops `x-pointsman-*` and `x-gateway-*` unless its peer is a configured trusted proxy (docs/security.md),
so any of them that arrives here may decide priority and fairness. Headers that any client may send affect
only that client's own request: its session and its service-level objectives. A blank value counts as none: proxies send
one where they have nothing to say.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from pointsman_contracts.priority import BATCH_PRIORITY
from pointsman_core.given_worker import PREFILLER, WORKER, given_worker
from pointsman_core.refusal import Refusal
from pointsman_core.subset import HEADERS as SUBSET
from pointsman_core.subset import subset_of
from pointsman_plugins.preprocessing import HeaderFacts
from pointsman_preprocessor.domain.known_agents import MARKED_BY

_PRIORITY: Final = "x-pointsman-priority"
_OWN_PRIORITY: Final = "x-priority"
_HINTED_PRIORITY: Final = "x-dynamo-request-priority"
"""A wish of the client, which its identity bounds (`agent_hints`)."""
_BATCH: Final = "batch"
"""The only value of `x-priority`, which any client may send, that counts: it puts the own request behind all others."""
_OBJECTIVE: Final = ("x-pointsman-objective", "x-gateway-inference-objective")
_FAIRNESS: Final = ("x-pointsman-fairness-id", "x-gateway-inference-fairness-id")
_SESSION: Final = "x-session-id"
# Newer names first: they have precedence, as in llm-d-router 0.10.
_TTFT: Final = ("x-pointsman-slo-ttft-ms", "x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
_ITL: Final = ("x-pointsman-slo-itl-ms", "x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")

_OPTIONS: Final = frozenset(
    {
        _PRIORITY,
        _OWN_PRIORITY,
        _HINTED_PRIORITY,
        *_OBJECTIVE,
        *_FAIRNESS,
        _SESSION,
        *_TTFT,
        *_ITL,
        *SUBSET,
        *WORKER,
        *PREFILLER,
        *MARKED_BY,
    }
)
"""Every header that decides something."""

HIGHEST_PRIORITY: Final = 1000
LONGEST_ID: Final = 256
"""Characters of a session or fairness id."""
LONGEST_VALUE: Final = 1024
"""Characters of a header value that is kept for rules."""
HEADERS_LIMIT: Final = 6144
"""Characters of all kept headers together: a journey has 64 KiB, and its blocks may take 43."""

_SECRET_NAMES: Final = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
_SECRET_PARTS: Final = (
    "api-key",
    "apikey",
    "secret",
    "password",
    "credential",
    "signature",
    "access-token",
    "auth-token",
)
_SECRET_ENDINGS: Final = ("-token", "_token", "-authorization", "-jwt")
_PUBLIC_TOKENS: Final = frozenset({"x-session-token"})


def read_headers(headers: Mapping[str, str]) -> HeaderFacts:
    """Read the headers of a request (lower-case names). Raises Refusal 400 for an invalid value."""
    size, secrets, options = _named(tuple(headers))
    size += sum(map(len, headers.values()))
    if size <= LONGEST_VALUE or (size <= HEADERS_LIMIT and max(map(len, headers.values())) <= LONGEST_VALUE):
        readable, dropped = dict(headers), 0
        for name in secrets:
            del readable[name]
    else:
        readable, dropped = _short(headers)
    if not options:
        return HeaderFacts(readable, dropped)
    get = headers.get
    priority = _first(headers, (_PRIORITY,))
    objective = _first(headers, _OBJECTIVE) if priority is None and get(_OWN_PRIORITY) != _BATCH else None
    return HeaderFacts(
        readable=readable,
        dropped=dropped,
        session=_identifier(_SESSION, get(_SESSION)),
        priority=BATCH_PRIORITY if priority is None and get(_OWN_PRIORITY) == _BATCH else _priority(priority),
        objective=None if objective is None else _identifier(_OBJECTIVE[0], objective),
        fairness_id=_identifier(_FAIRNESS[0], _first(headers, _FAIRNESS)) or "",
        slo_ttft_ms=_milliseconds(headers, _TTFT),
        slo_itl_ms=_milliseconds(headers, _ITL),
        subset=subset_of(headers),
        workers=_workers(headers),
        names_agent=not MARKED_BY.isdisjoint(headers),
        hinted_priority=_first(headers, (_HINTED_PRIORITY,)),
    )


@lru_cache(maxsize=1024)
def is_secret(name: str) -> bool:
    """Whether a header of this (lower-case) name may carry a credential."""
    if name in _PUBLIC_TOKENS:
        return False
    return name in _SECRET_NAMES or name.endswith(_SECRET_ENDINGS) or any(part in name for part in _SECRET_PARTS)


@lru_cache(maxsize=1024)
def _named(names: tuple[str, ...]) -> tuple[int, list[str], bool]:
    """Facts about headers with these names: the characters of the names, those that may carry a credential, and whether
    any decides something. Most requests have the names of an earlier one."""
    return sum(map(len, names)), [name for name in names if is_secret(name)], not _OPTIONS.isdisjoint(names)


def _short(headers: Mapping[str, str]) -> tuple[dict[str, str], int]:
    kept: dict[str, str] = {}
    dropped = 0
    left = HEADERS_LIMIT
    for name, value in headers.items():
        if is_secret(name):
            continue
        size = len(name) + len(value)
        if len(value) > LONGEST_VALUE or size > left:
            dropped += 1
            continue
        kept[name] = value
        left -= size
    return kept, dropped


def _workers(headers: Mapping[str, str]) -> tuple[str, ...] | None:
    worker = _identifier(WORKER[0], given_worker(headers))
    if worker is None:
        return None
    prefiller = _identifier(PREFILLER[0], given_worker(headers, PREFILLER))
    return (worker,) if prefiller is None else (worker, prefiller)


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    for name in names:
        value = headers.get(name)
        if value is not None and value.strip():
            return value
    return None


def _identifier(name: str, value: str | None) -> str | None:
    if not value or value.isspace():
        return None
    if len(value) > LONGEST_ID or not value.isprintable():
        raise Refusal(
            400, f"Invalid header '{name}': expected at most {LONGEST_ID} printable characters.", code="invalid_header"
        )
    return value


def _priority(value: str | None) -> int:
    if value is None:
        return 0
    if value == _BATCH:
        return BATCH_PRIORITY
    try:
        priority = int(value)
    except ValueError:
        priority = HIGHEST_PRIORITY + 1
    if abs(priority) > HIGHEST_PRIORITY:
        raise Refusal(
            400,
            f"Invalid header '{_PRIORITY}': expected `{_BATCH}`, or an integer from {-HIGHEST_PRIORITY} to "
            f"{HIGHEST_PRIORITY}.",
            code="invalid_header",
        )
    return priority


def _milliseconds(headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = headers.get(name)
        if value is None or not value.strip():
            continue
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise Refusal(
                400, f"Invalid header '{name}': expected a positive number of milliseconds.", code="invalid_header"
            )
        return number
    return None
