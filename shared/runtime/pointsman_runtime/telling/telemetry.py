"""Traces across stages, carried by `traceparent` and exported by OTLP when an endpoint is set.

A request that isn't sampled costs a look at the last character of its `traceparent`; most have none at all. Sampled
ones use OpenTelemetry's own propagator, sampler and exporter.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan

    from pointsman_runtime.telling.process import Process

EXPORT_S: Final = 3.0
"""How long a batch may take, tries included: a process waits for its last one before it ends."""
Kind = Literal["server", "client", "internal"]
"""The kind of a span: it answers a peer, asks a peer, or neither."""
Attribute = str | int | float | bool | tuple[str, ...] | None
"""A span's attribute; None is left out. Never prompt text."""
# https://www.w3.org/TR/trace-context/#traceparent-header, version 00. Checked here: the header of a client travels
# on to every stage whether or not this process exports traces, and OpenTelemetry's propagator needs 15 us to read it.
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_ODD: Final = frozenset("13579bdf")
_HEADER: Final = "traceparent"


def sampled(traceparent: str | None) -> bool:
    """Whether an earlier step decided to record this trace (bit 0 of the flags)."""
    return traceparent is not None and traceparent[-1:] in _ODD


class Span:
    """One timed step of a sampled trace; of any other, nothing but the `traceparent` to send on."""

    __slots__ = ("_recording", "traceparent")

    def __init__(self, traceparent: str | None, recording: "OtelSpan | None" = None) -> None:
        self.traceparent = traceparent
        """The parent of the next step."""
        self._recording = recording

    @property
    def is_recording(self) -> bool:
        """Whether attributes are kept: they needn't be collected otherwise."""
        return self._recording is not None

    def end_span(self, problem: str | None = None, **attributes: Attribute) -> None:
        """The step is over; `problem` marks it as failed. In the names of attributes `__` stands for a dot."""
        self.end_with({name.replace("__", "."): value for name, value in attributes.items()}, problem)

    def end_with(self, attributes: Mapping[str, Attribute], problem: str | None = None) -> None:
        """Like `end`, with the attributes' own names."""
        recording = self._recording
        if recording is None:
            return
        from opentelemetry.trace import StatusCode

        for name, value in attributes.items():
            if value is not None:
                recording.set_attribute(name, value)
        if problem is not None:
            recording.set_status(StatusCode.ERROR, problem)
        recording.end()
        self._recording = None


NO_SPAN: Final = Span(None)
"""The span of every request without a trace."""


class Tracing:
    """Makes spans for one process. Without an exporter it passes `traceparent` on and makes none."""

    def __init__(self, provider: "TracerProvider | None" = None, ratio: float = 0.0) -> None:
        """`ratio`: the share of requests without a trace of their own that an edge samples."""
        self._provider = provider
        self.exports: Final = provider is not None
        """Whether requests without a trace of their own may get one."""
        if provider is None:
            return
        # The SDK takes 100 ms to import: only a process that exports pays for it.
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("pointsman")
        self._propagator = TraceContextTextMapPropagator()
        self._ids = RandomIdGenerator()
        self._bound = TraceIdRatioBased.get_bound_for_rate(ratio)
        self._considered = TraceIdRatioBased.TRACE_ID_LIMIT

    @classmethod
    def export_to(cls, endpoint: str | None, ratio: float, process: "Process") -> "Tracing":
        """Export to the OTLP/HTTP collector at base URL `endpoint`; None makes no spans. Headers for the collector come
        from `OTEL_EXPORTER_OTLP_HEADERS`, as for every program that uses OpenTelemetry's SDK."""
        if endpoint is None:
            return cls()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_S)
        provider = provider_for(process)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider, ratio)

    def adopt_trace(self, header: str | None) -> str | None:
        """The `traceparent` of a request at the edge: the client's when it is well-formed; otherwise a new
        sampled one for the configured share of requests, and None for the rest."""
        if header is not None and _TRACEPARENT.fullmatch(header):
            return header
        if self._provider is None:
            return None
        # As the SDK's sampler decides, without the span that it would take to ask it.
        trace_id = self._ids.generate_trace_id()
        if trace_id & self._considered >= self._bound:
            return None
        return f"00-{trace_id:032x}-{self._ids.generate_span_id():016x}-01"

    def begin_span(self, name: str, traceparent: str | None, kind: Kind = "internal", **attributes: Attribute) -> Span:
        """Begin a step below `traceparent`, named e.g. `scheduler`. Attributes as of `Span.end_span`."""
        if traceparent is None:
            return NO_SPAN
        if self._provider is None or not sampled(traceparent):
            return Span(traceparent)
        from opentelemetry import trace

        span = self._tracer.start_span(
            name,
            self._propagator.extract({_HEADER: traceparent}),
            trace.SpanKind[kind.upper()],
            {key.replace("__", "."): value for key, value in attributes.items() if value is not None},
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span))
        return Span(carrier.get(_HEADER), span)

    def close(self) -> None:
        """Export the remaining spans; blocks for a few seconds at most."""
        if self._provider is not None:
            self._provider.shutdown()


def provider_for(process: "Process") -> "TracerProvider":
    """The SDK's provider with this process's resource attributes. Records what an earlier step sampled: a root span
    comes from a `traceparent` that the edge made."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

    resource = Resource.create(
        {
            "service.name": f"pointsman-{process.service}",
            "service.instance.id": process.instance,
            "service.version": process.version,
        }
    )
    return TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource, shutdown_on_exit=False)
