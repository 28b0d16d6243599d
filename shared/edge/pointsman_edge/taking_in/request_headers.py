"""Reads a client's headers: those that are sent to the stages, those that are forwarded to the engine, and the
request's id."""

import itertools
import re
import secrets
from collections import Counter
from collections.abc import Container, Iterable
from itertools import compress
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from pointsman_core import header_names
from pointsman_core.given_worker import PREFILLER, WORKER
from pointsman_core.refusal import Refusal

LONGEST_LIST: Final = 128
"""Headers that one request may have."""

HOP_BY_HOP: Final = frozenset(name.encode() for name in header_names.HOP_BY_HOP)
SYSTEM_PREFIXES: Final = (b"x-gateway-", b"x-pointsman-")
"""Headers from gateways to gateways; from a client they are forgeries."""
ROUTING_REQUEST: Final = b"x-routing-request"
"""The header that asks for the route alone."""
GIVEN_WORKER: Final = frozenset(name.encode() for name in (*WORKER, *PREFILLER))
"""Headers that name the worker of a request (NVIDIA Dynamo 1.6)."""
ENGINE_ORDERS: Final = frozenset(
    {
        b"x-prefiller-host-port", b"x-prefiller-rank", b"x-encoder-hosts-ports", b"x-data-parallel-host-port",
        b"x-kv-cache-source-host-port", b"x-data-parallel-rank", b"x-dp-rank", b"x-prefill-dp-rank",
        b"x-dynamo-dp-rank", b"x-dynamo-prefill-dp-rank", b"x-dynamo-request-priority",
        b"x-dynamo-request-strict-priority",
    }
)  # fmt: skip
"""Headers from gateways to engines and their sidecars (llm-d-router 0.10, NVIDIA Dynamo 1.6). A sidecar connects
to the hosts that some of these name: from a client they would reach into the cluster."""
DESTINATION: Final = b"x-gateway-destination-endpoint"
"""The address that was chosen (Endpoint Picker Protocol 004)."""
OF_ONE_POOL: Final = ENGINE_ORDERS | {DESTINATION}
"""Headers of a decision that are only valid for the engines of its pool."""
CREDENTIALS: Final = frozenset({b"authorization", b"x-api-key", b"api-key"})
IDENTITY_HEADERS: Final = (
    "forwarded", "x-forwarded-*", "x-real-ip", "x-client-cert*", "x-ssl-client-*", "x-auth-request-*",
    "x-authenticated-*", "x-authz-*", "x-user", "x-user-*", "x-tenant", "x-tenant-*", "x-org-id", "remote-user",
    "x-remote-*", "x-consumer-*", "x-credential-*", "x-amzn-oidc-*", "x-goog-authenticated-*", "x-goog-iap-*",
    "x-ms-client-principal*",
)  # fmt: skip
"""Headers in which a proxy in front names the client; a `*` at the end matches any ending."""

_GATEWAYS: Final = GIVEN_WORKER | ENGINE_ORDERS
_INTERNAL_PREFIXES: Final = (*SYSTEM_PREFIXES, b"x-llm-d-")
_UNREPEATABLE: Final = frozenset(
    {b"authorization", b"x-api-key", b"api-key", b"content-type", b"content-encoding", b"content-length", b"host"}
)
"""Readers disagree about repetitions of these: such a request is refused."""
_USUAL: Final = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})
"""Values of `Connection` that name no header."""
_REMEMBERED: Final = 4096
_SHAPES: Final = 1024
"""Lists of names that are remembered, and how long one may be: in headers and in bytes."""
_SHAPE_HEADERS: Final = 64
_SHAPE_BYTES: Final = 4096
_RARE: Final = frozenset({b"content-encoding", b"x-forwarded-for", ROUTING_REQUEST})
_NAME: Final = itemgetter(0)
_VALUE: Final = itemgetter(1)

Header = tuple[bytes, bytes]

# How a header is used; plain integers, because this is looked up for every header of every request.
_NONE: Final = 0
_STAGES: Final = 1
"""Sent to the stages."""
_ENGINE: Final = 2
"""Sent on to the engine."""
_TRUSTED: Final = 4
"""Only when the peer is a trusted proxy."""
_TRACE: Final = 8
"""Read by the edge itself."""
_PASSED: Final = _STAGES | _ENGINE

_KNOWN: Final = {
    # The edge writes its own of these for the engine. Answers are wanted uncompressed, for the usage at their end.
    b"host": _STAGES,
    b"content-length": _NONE,
    b"accept-encoding": _NONE,
    b"expect": _NONE,
    b"x-request-id": _NONE,
    b"traceparent": _TRACE,
    b"cookie": _NONE,
    b"content-type": _PASSED,
    b"content-encoding": _NONE,
    ROUTING_REQUEST: _STAGES | _TRUSTED,
    b"x-forwarded-for": _PASSED,
}


LONGEST_ID: Final = 128
_USABLE: Final = re.compile(rb"[A-Za-z0-9._:-]{1,%d}" % LONGEST_ID)
_ROOM_FOR_A_SUFFIX: Final = LONGEST_ID - 24


class ClientHeaders(msgspec.Struct, frozen=True, gc=False):
    """A request's headers, by their readers."""

    stages: dict[str, str]
    """For the journey: lower-case names; repeated headers joined with `, `."""
    engine: list[Header]
    content_type: str | None
    content_length: int | None
    traceparent: str | None
    content_encoding: str | None = None
    forwarded_for: str | None = None
    """Only from a trusted proxy."""
    routing: bool = False
    """Only the route is asked for."""


class _Shape(NamedTuple):
    """How headers with certain names are sorted."""

    size: int
    """Bytes of the names."""
    told: tuple[bool, ...]
    """Which of them are sent to the stages, or traced."""
    keys: tuple[str, ...]
    """The names of these, for the stages."""
    forwarded: tuple[bool, ...]
    """Which of them are sent on to the engine."""
    connection_at: int | None
    """The place of `Connection`."""
    length_at: int | None
    """The place of `Content-Length`."""
    plain: bool
    """None of them is one that few requests have, of `ClientHeaders`."""
    repeated: bool
    """A name occurs twice."""


class RequestIds:
    """Ids that are unique within this edge, and among all edges as far as it made them itself."""

    def __init__(self) -> None:
        self._prefix = f"req-{secrets.token_hex(6)}-"
        self._numbers = itertools.count(1)

    def make_id(self) -> str:
        """A new id, unique among all edges."""
        return f"{self._prefix}{next(self._numbers):x}"

    def choose_id(self, headers: list[tuple[bytes, bytes]], in_use: Container[str]) -> str:
        """The id of a request with these (lower-case) headers.

        A client's id that is still in use gets a suffix: stages and reservations know a request by its edge and its id.
        """
        if b"x-request-id" not in map(_NAME, headers):
            return f"{self._prefix}{next(self._numbers):x}"
        # The first one counts.
        value = dict(reversed(headers))[b"x-request-id"]
        if not _USABLE.fullmatch(value):
            return self.make_id()
        given = value.decode("ascii")
        if given not in in_use:
            return given
        return f"{given[:_ROOM_FOR_A_SUFFIX]}.{secrets.token_hex(3)}{next(self._numbers):x}"


class HeaderRules:
    """The rules, compiled once. Names are classified once each, and so are the lists of names that requests have: a
    client's requests differ in values alone. No value is kept."""

    def __init__(
        self, identity: Iterable[str] = IDENTITY_HEADERS, *, forward_credentials: bool = False, limit: int = 65536
    ) -> None:
        names = [name.lower().replace("_", "-").encode() for name in identity]
        self._identity = frozenset(name for name in names if not name.endswith(b"*"))
        self._identity_prefixes = (*SYSTEM_PREFIXES, *(name[:-1] for name in names if name.endswith(b"*")))
        self._forward_credentials = forward_credentials
        self._limit = limit
        self._uses: dict[bytes, tuple[int, str]] = {}
        self._shapes: dict[tuple[bool, tuple[bytes, ...]], _Shape] = {}
        """By whether the peer is trusted, and names."""

    def read(self, headers: list[Header], *, trusted: bool) -> ClientHeaders:
        """Sort the (lower-case) headers of one request. Raises Refusal when they can't be taken.

        `trusted`: the peer is a proxy that may name its client.
        """
        names, values = zip(*headers) if headers else ((), ())  # noqa: B905 - all are pairs
        shape = self._shapes.get((trusted, names)) or self._learn(names, trusted=trusted)
        if (at := shape.connection_at) is not None and (values[at] not in _USUAL or shape.repeated):
            shape = self._make_shape(names, _named_by_connection(headers), trusted=trusted)
        size, told, keys, forwarded, _, length_at, plain, repeated = shape
        try:
            texts = list(map(bytes.decode, compress(values, told)))
        except UnicodeDecodeError:
            raise _not_text(compress(headers, told)) from None
        stages = _joined(keys, texts) if repeated else dict(zip(keys, texts, strict=True))
        size += sum(map(len, values))
        if size > self._limit:
            message = f"The headers have {size} bytes; at most {self._limit} are accepted."
            raise Refusal(431, message, code="headers_too_large")
        traceparent = stages.pop("traceparent", None)
        engine = list(compress(headers, forwarded))
        number = None
        if length_at is not None:
            length = values[length_at]
            number = int(length) if length.isdigit() else None
        if plain:
            return ClientHeaders(stages, engine, stages.get("content-type"), number, traceparent)
        encoding = dict(headers).get(b"content-encoding")
        return ClientHeaders(
            stages=stages,
            engine=engine,
            content_type=stages.get("content-type"),
            content_length=number,
            traceparent=traceparent,
            content_encoding=None if encoding is None else encoding.decode("utf-8", "replace"),
            forwarded_for=stages.get("x-forwarded-for"),
            routing=stages.get("x-routing-request", "").lower() == "true",
        )

    def _learn(self, names: tuple[bytes, ...], *, trusted: bool) -> _Shape:
        """The shape of headers with these names. Raises Refusal if this client may not send them."""
        if len(names) > LONGEST_LIST:
            message = f"The request has {len(names)} headers; at most {LONGEST_LIST} are accepted."
            raise Refusal(431, message, code="headers_too_large")
        if len(set(names)) < len(names):
            _check_repeated(names)
        _check_routing(names, trusted=trusted)
        shape = self._make_shape(names, (), trusted=trusted)
        # Names come from clients; a flood of new ones must not stay.
        if len(names) <= _SHAPE_HEADERS and shape.size <= _SHAPE_BYTES:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            self._shapes[trusted, names] = shape
        return shape

    def _make_shape(self, names: tuple[bytes, ...], dropped: Container[bytes], *, trusted: bool) -> _Shape:
        """The shape of headers with these names. `dropped`: names that the header `Connection` lists."""
        uses = [self._uses.get(name) or self._classify(name) for name in names]
        used = [
            0 if (use & _TRUSTED and not trusted) or name in dropped else use
            for name, (use, _) in zip(names, uses, strict=True)
        ]
        told = [bool(use & (_STAGES | _TRACE)) for use in used]
        return _Shape(
            size=sum(map(len, names)),
            told=tuple(told),
            keys=tuple(compress(map(_VALUE, uses), told)),
            forwarded=tuple([bool(use & _ENGINE) for use in used]),
            connection_at=names.index(b"connection") if b"connection" in names else None,
            length_at=names.index(b"content-length") if b"content-length" in names else None,
            plain=_RARE.isdisjoint(names),
            repeated=len(set(names)) < len(names),
        )

    def _classify(self, name: bytes) -> tuple[int, str]:
        use = self._use_of(name), name.decode("ascii", "replace")
        if len(self._uses) >= _REMEMBERED:
            # Names come from clients; a flood of new ones must not stay.
            self._uses.clear()
        self._uses[name] = use
        return use

    def _use_of(self, name: bytes) -> int:
        use = _KNOWN.get(name, _STAGES | _ENGINE)
        # Some servers read `x_user_id` as `x-user-id`.
        spelt = name.replace(b"_", b"-")
        if spelt in HOP_BY_HOP:
            return _NONE
        named = spelt in _GATEWAYS or spelt in self._identity or spelt.startswith(self._identity_prefixes)
        if use and named:
            use |= _TRUSTED
        if spelt in CREDENTIALS and not self._forward_credentials:
            use &= ~_ENGINE
        return use


def internal(name: bytes) -> bool:
    """Whether a header of an engine's answer is for gateways alone, and no client's business. `name` in lower case."""
    return name.startswith(_INTERNAL_PREFIXES) or name in _GATEWAYS


def _joined(keys: Iterable[str], texts: Iterable[str]) -> dict[str, str]:
    stages: dict[str, str] = {}
    for key, text in zip(keys, texts, strict=True):
        stages[key] = f"{stages[key]}, {text}" if key in stages else text
    return stages


def _not_text(headers: Iterable[Header]) -> Refusal:
    """The refusal that names the first header that can't be decoded."""
    for name, value in headers:
        try:
            value.decode()
        except UnicodeDecodeError:
            return _bad(f"The header {_shown(name)} isn't text; header values must be ASCII or UTF-8.")
    raise ValueError("every header is text")


def _check_routing(names: Container[bytes], *, trusted: bool) -> None:
    if not trusted and ROUTING_REQUEST in names:
        # Ignoring the header would generate, and bill, an answer that the client didn't ask for.
        raise Refusal(
            403,
            "Only trusted proxies may ask for routes; leave x-routing-request out to get an answer.",
            code="routing_not_allowed",
        )


def _check_repeated(names: Iterable[bytes]) -> None:
    for name, times in Counter(names).items():
        if times > 1 and name in _UNREPEATABLE:
            raise _bad(f"The header {_shown(name)} occurs more than once; send it once.")


def _named_by_connection(headers: list[Header]) -> frozenset[bytes]:
    tokens = b",".join(value for name, value in headers if name == b"connection").lower().split(b",")
    return frozenset(token.strip() for token in tokens) - _UNREPEATABLE


def _shown(name: bytes) -> str:
    return name.decode("ascii", "replace")[:64]


def _bad(message: str) -> Refusal:
    return Refusal(400, message, code="invalid_header")
