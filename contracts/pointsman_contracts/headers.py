"""NATS header names."""

from typing import Final

TYPE: Final = "Pm-Type"
"""The type id of the message, e.g. `request.scheduled.v1`."""
DEADLINE: Final = "Pm-Deadline"
"""Unix time in milliseconds, by the clock of the request's edge, at which this message expires; a receiver drops it
then and counts it."""
CLOCK: Final = "Pm-Clock"
"""The time of the clock of the request's edge when the message was sent, by which its deadline is read: the edge's
instance, how often its clock was set, and the Unix time in milliseconds, with blanks between them."""
TRACEPARENT: Final = "traceparent"
"""W3C trace context."""
MESSAGE_ID: Final = "Nats-Msg-Id"
"""Deduplication key of an event: `<subject>:<source>:<sequence>`."""
