"""A worker that a trusted proxy has chosen itself, by the headers that name it; untrusted ones are gone before."""

from collections.abc import Mapping
from typing import Final

WORKER: Final = ("x-gateway-worker-id", "x-dynamo-worker-instance-id", "x-worker-instance-id")
"""The one that answers."""
PREFILLER: Final = ("x-dynamo-prefill-instance-id", "x-prefill-instance-id")
"""The one that computes the prompt, when another one does."""


def given_worker(headers: Mapping[str, str], names: tuple[str, ...] = WORKER) -> str | None:
    """Its name, by the first header that isn't empty; None: the choice is the gateway's."""
    return next((headers[name] for name in names if headers.get(name)), None)
