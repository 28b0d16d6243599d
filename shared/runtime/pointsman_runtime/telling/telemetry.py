"""Traces across stages, carried by `traceparent` and exported by OTLP when an endpoint is set.

A request that isn't sampled costs a look at the last character of its `traceparent`; most have none at all.
"""

import random
import re
import secrets
from typing import TYPE_CHECKING, Final

from pointsman_runtime.telling.logs import Field

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

    from pointsman_runtime.telling.process import Process

# https://www.w3.org/TR/trace-context/#traceparent-header, version 00
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
EXPORT_S: Final = 3.0
"""How long a batch may take, tries included: a process waits for its last one before it ends."""
_ODD: Final = frozenset("13579bdf")


def sampled(traceparent: str | None) -> bool:
    """Whether somebody before us decided to record this trace (bit 0 of the flags)."""
    return traceparent is not None and traceparent[-1:] in _ODD


class Span:
    """One timed step of a sampled trace; of any other, nothing but the `traceparent` to send on."""

    __slots__ = ("_recording", "traceparent")

    def __init__(self, traceparent: str | None, recording: "OtelSpan | None" = None) -> None:
        self.traceparent = traceparent
        """What the next step gets as its parent."""
        self._recording = recording

    def end(self, problem: str | None = None, **attributes: Field) -> None:
        """The step is over; `problem` marks it as failed. Attributes never hold prompt text."""
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


_NONE: Final = Span(None)
"""The span of every request without a trace."""


class Tracing:
    """Makes spans for one process. Without an endpoint it passes `traceparent` on and makes none."""

    def __init__(self, tracer: "Tracer | None" = None, provider: "TracerProvider | None" = None, ratio: float = 0.0):
        self._tracer = tracer
        self._provider = provider
        self._ratio = ratio

    @classmethod
    def to(cls, endpoint: str | None, ratio: float, process: "Process") -> "Tracing":
        """Export to the OTLP/HTTP collector at base URL `endpoint`; None makes no spans."""
        if endpoint is None:
            return cls()
        # The SDK takes 100 ms to import: only a process that exports pays for it.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_S)
        provider = provider_for(process)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider.get_tracer("pointsman"), provider, ratio)

    def adopt(self, header: str | None) -> str | None:
        """The `traceparent` of a request at the edge: the client's when it is well-formed; otherwise a new
        sampled one for the configured share of requests, and None for the rest."""
        if header is not None and _TRACEPARENT.fullmatch(header):
            return header
        if self._tracer is None or random.random() >= self._ratio:
            return None
        return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"

    def begin(self, name: str, traceparent: str | None, **attributes: Field) -> Span:
        """Begin a step below `traceparent`, named e.g. `scheduler`."""
        if traceparent is None:
            return _NONE
        if self._tracer is None or not sampled(traceparent):
            return Span(traceparent)
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None:
            return Span(None)
        from opentelemetry import trace

        parent = trace.SpanContext(
            int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED)
        )
        span = self._tracer.start_span(
            name,
            trace.set_span_in_context(trace.NonRecordingSpan(parent)),
            attributes={key: value for key, value in attributes.items() if value is not None},
        )
        return Span(f"00-{match[1]}-{span.get_span_context().span_id:016x}-{match[3]}", span)

    def close(self) -> None:
        """Export what is left; blocks for a few seconds at most."""
        if self._provider is not None:
            self._provider.shutdown()


def provider_for(process: "Process") -> "TracerProvider":
    """The SDK's provider with this process's resource attributes; samples all, because only sampled requests
    get a span."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    resource = Resource.create(
        {
            "service.name": f"pointsman-{process.service}",
            "service.instance.id": process.instance,
            "service.version": process.version,
        }
    )
    return TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
