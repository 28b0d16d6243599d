"""Body-based routing: the model of a body, and its base, go into headers, for routes to match."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry

from pointsman_core.refusal import Refusal
from pointsman_edge.edge import Edge
from pointsman_epp_adapter.adapters import wire
from pointsman_epp_adapter.adapters.stream import Stream
from pointsman_epp_adapter.adapters.wire import CONTINUE
from pointsman_epp_adapter.domain.envoy_events import RequestHead
from pointsman_epp_adapter.domain.mutation import HeaderChanges
from pointsman_epp_adapter.domain.routing_name import base_of, routing_name
from pointsman_runtime.telling.counting import Counter, Histogram

MODEL: Final = b"x-gateway-model-name"
BASE_MODEL: Final = b"x-gateway-base-model-name"
_BUCKETS: Final = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)

T = TypeVar("T")


class BodyRouting:
    """Names models. A client's own values of these headers never pass."""

    def __init__(self, edge: Edge, registry: CollectorRegistry) -> None:
        self._edge: Final = edge
        requests = Counter(
            "pointsman_body_routing_requests",
            "Requests by what their body names: named, nameless, bodyless, refused.",
            ["outcome"],
            registry=registry,
        )
        self._named, self._nameless, self._bodyless, self._refused = (
            requests.labels(outcome) for outcome in ("named", "nameless", "bodyless", "refused")
        )
        seconds = Histogram(
            "pointsman_body_routing_processor_seconds",
            "Time of one processor for one request.",
            ["processor"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._of_model = seconds.labels("model-to-header").observe
        self._of_base = seconds.labels("base-model-to-header").observe

    async def name_model(self, stream: Stream, head: RequestHead) -> None:
        """Answer Envoy with the headers of one request. Raises Refusal."""
        if head.end:
            self._bodyless.inc()
            await stream.write_all(wire.decided(_changes(None, None), "", {}, buffered_body=False))
            return
        policy = self._edge.policy()
        try:
            whole = await stream.read_body(head, policy.limits.max_body)
        except Refusal:
            self._refused.inc()
            raise
        name = _timed(self._of_model, lambda: routing_name(whole.data))
        base = None if name is None else _timed(self._of_base, lambda: base_of(policy.config, name))
        # Other traffic of the same gateway names none, and is none of the picker's business.
        (self._nameless if name is None else self._named).inc()
        messages = wire.decided(
            _changes(name, base),
            "",
            {},
            buffered_body=whole.buffered,
            body=None if whole.buffered else whole.data,
            duplex=not whole.buffered,
            trailers=whole.trailers,
        )
        await stream.write_all(messages)
        if whole.trailers:
            await stream.write(CONTINUE["request_trailers"])


def _changes(name: bytes | None, base: bytes | None) -> HeaderChanges:
    # Envoy drops a header without a value, so unknown names are removed instead.
    told = [(MODEL, name), (BASE_MODEL, base)]
    return HeaderChanges(
        [(header, value) for header, value in told if value],
        [header.decode() for header, value in told if not value],
    )


def _timed(observe: Callable[[float], None], work: Callable[[], T]) -> T:
    began = time.perf_counter()
    try:
        return work()
    finally:
        observe(time.perf_counter() - began)
