"""The model's name as a header by which routes are chosen."""

from typing import Final

from pointsman_core.refusal import Refusal
from pointsman_edge.domain.requested_model import requested_model

_LONGEST: Final = 1024
"""Bytes; Envoy ends a request whose headers became too long."""


def routing_name(body: bytes) -> bytes | None:
    """What a header can hold of the body's `model`; None when it names none, or none that is a name."""
    try:
        model = requested_model(body)
    except Refusal:
        return None
    name = model.encode("utf-8", "replace")
    return name if model.isprintable() and len(name) <= _LONGEST else None
