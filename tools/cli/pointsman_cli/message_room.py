"""How large a body may be for the bus: it travels once, inside one message. Pure."""

from typing import Final

from pointsman_core.config import Config

MAX_PAYLOAD: Final = 8 * 2**20
"""Largest message, in bytes, of the servers that this project configures."""
ENVELOPE: Final = 256 * 2**10
"""What must be left of `max_payload` beside the largest body, for headers and the request's envelope, in bytes."""


def problem(config: Config, max_payload: int) -> str | None:
    """Why bodies of `edge.max_body` don't fit into a message of `max_payload` bytes; None when they do."""
    if config.edge.max_body + ENVELOPE <= max_payload:
        return None
    return (
        f"the bus carries no body of {size(config.edge.max_body)}: its messages have at most {size(max_payload)} "
        f"(max_payload), {size(ENVELOPE)} of that for headers; write at most {size(max_payload - ENVELOPE)}, "
        "or raise max_payload on the NATS server"
    )


def size(count: int) -> str:
    """Bytes as a configuration takes them, e.g. `8MiB`; exact."""
    for factor, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if count % factor == 0:
            return f"{count // factor}{unit}"
    return f"{count}B"
