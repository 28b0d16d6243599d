"""A request on its way to endpoints."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from pointsman_contracts.journey import BodyEdit
from pointsman_contracts.reply import Decision
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_frontend.adapters.http_turn import Headers
from pointsman_frontend.adapters.relay import ResponseWriter
from pointsman_frontend.domain.resuming.resuming import Resuming

_CACHE_SOURCE: Final = b"x-kv-cache-source-host-port"


class Outgoing(msgspec.Struct):
    """A decided request: where it goes, what the client sent, and who takes the answer."""

    record: RequestRecord
    decision: Decision
    client: ResponseWriter
    method: str
    target: bytes
    """Path and query, for engines."""
    query: bytes
    """The client's."""
    headers: Headers
    """For engines."""
    thinking: Callable[[], None]
    """Called when an endpoint sends something before its answer says something."""
    decide_again: Callable[[], Awaitable[Decision | None]] | None = None
    """Asks for another decision; None when there is none."""
    resuming: Resuming | None = None
    """The stream as far as the client has it, where another engine may continue it."""
    carried: tuple[BodyEdit, ...] | None = None
    """The changes of the body by which an endpoint fetches the prompt's KV cache from another engine; empty where it
    computes the prompt itself, None before that is known."""
    drops_ids: bool = False
    """The gateway asked the endpoint for token ids, and the client didn't."""

    def drop_cache_source(self) -> None:
        """Take away the header that names the engine to pull the prompt's KV cache from. It is for one endpoint;
        another one may be that engine."""
        self.headers = [header for header in self.headers if header[0] != _CACHE_SOURCE]
