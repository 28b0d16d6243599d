"""NATS header names."""

from typing import Final

TYPE: Final = "Pm-Type"
"""The type id of the message, e.g. `request.scheduled.v1`."""
DEADLINE: Final = "Pm-Deadline"
"""Unix time in milliseconds at which this message expires; a receiver drops it then and counts it."""
TRACEPARENT: Final = "traceparent"
"""W3C trace context."""
MESSAGE_ID: Final = "Nats-Msg-Id"
"""Deduplication key of an event: `<subject>:<source>:<sequence>`."""
