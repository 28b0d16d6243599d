"""Priorities of requests with a meaning of their own."""

from typing import Final

BATCH_PRIORITY: Final = -100
"""The priority of background work: from here down, requests go to an engine only where they delay others by less than a
bound, and leave it when others come."""
