"""The engines that keep the responses of `/v1/responses`, for requests that name one by its id."""

import re
from collections import OrderedDict
from typing import Final, NamedTuple

from pointsman_apis.usage import BeginningTail
from pointsman_contracts.identity import Identity
from pointsman_contracts.reply import Decision
from pointsman_core.config import Config, identifies
from pointsman_core.refusal import Refusal
from pointsman_edge.telling.request_record import RequestRecord

KEPT: Final = 65536
"""Responses that an edge remembers; the oldest are forgotten."""
_OK: Final = 200
_ID: Final = re.compile(rb'"id"\s*:\s*"(resp[\w.-]{1,124})"')


class StoredResponse(NamedTuple):
    """Where a response is kept, and whose it is."""

    model: str
    """The name that its client asked for."""
    worker: str | None
    owner: tuple[str, str]
    """Tenant and subject."""


class StoredResponses:
    """Remembers the responses that this edge passed on. Another edge doesn't know them."""

    def __init__(self) -> None:
        self._known: Final[OrderedDict[str, StoredResponse]] = OrderedDict()

    def remember_response(self, record: RequestRecord) -> None:
        """Note the response that a request brought, if it brought one. The first note of an id counts."""
        reply, tail = record.reply, record.tail
        if not isinstance(reply, Decision) or not isinstance(tail, BeginningTail) or record.status != _OK:
            return
        found = _ID.search(tail.start)
        if found is None:
            return
        stored = StoredResponse(reply.model, record.worker, _owner(reply.identity))
        self._known.setdefault(found[1].decode("ascii"), stored)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)

    def find_response(self, response: str, config: Config) -> StoredResponse | None:
        """Where a response is kept. None: this edge doesn't know, and any client may ask an engine. Raises Refusal 404
        if clients have identities, since its owner isn't known."""
        known = self._known.get(response)
        if known is None and any(identifies(use) for use in config.preprocessing):
            raise unknown_response()
        return known

    def refuse_other_client(self, stored: StoredResponse, identity: Identity | None) -> None:
        """Raise Refusal 404 for another client than the response's own."""
        if stored.owner != _owner(identity):
            raise unknown_response()


def unknown_response() -> Refusal:
    """404 for a response that isn't there for this client."""
    message = "This replica doesn't know the response; another replica may have served it, or it is too old."
    return Refusal(404, message, code="response_not_found")


def _owner(identity: Identity | None) -> tuple[str, str]:
    return ("", "") if identity is None else (identity.tenant, identity.subject)
