"""The model's name as a header by which routes are chosen."""

from typing import Final

from pointsman_core.config import Config
from pointsman_core.refusal import Refusal
from pointsman_edge.deciding.requested_model import requested_model

_LONGEST: Final = 1024
"""Bytes; Envoy ends a request whose headers became too long."""


def routing_name(body: bytes) -> bytes | None:
    """The body's `model` as a header value; None if the body names none, or the name can't be in a header."""
    try:
        model = requested_model(body)
    except Refusal:
        return None
    return _header(model)


def base_of(config: Config, name: bytes) -> bytes | None:
    """The base model of a model that the configuration knows, which is its own unless it is an adapter; None when it
    isn't known."""
    target = config.find_target(name.decode())
    if target is None:
        return None
    base = target.model if target.lora is None else target.base
    return None if base is None else _header(base)


def _header(name: str) -> bytes | None:
    written = name.encode("utf-8", "replace")
    return written if name.isprintable() and len(written) <= _LONGEST else None
