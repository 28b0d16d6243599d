"""The engines that keep the responses of `/v1/responses`, for requests that name one by its id."""

import hashlib
import re
from collections import OrderedDict
from typing import Final, NamedTuple, cast

import orjson

from pointsman_apis.usage import BeginningTail
from pointsman_contracts.identity import Identity
from pointsman_contracts.kept_response import KeptResponse
from pointsman_contracts.reply import Decision, Rejection
from pointsman_core.config import Config, identifies
from pointsman_core.refusal import Refusal
from pointsman_edge.taking_in.previous_response import FIELD
from pointsman_edge.telling.kept_responses import KeptResponses, ResponsesUnreachable
from pointsman_edge.telling.request_record import RequestRecord

KEPT: Final = 65536
"""Responses that an edge remembers; the oldest are forgotten."""
MOST_TOKENS: Final = 2**24
"""Tokens of a response with its prompt. No model has a context of 16 million: more is a wrong report."""
LONGEST_ID: Final = 128
"""Characters. Engines write ids of about 40: a longer one is none of theirs."""
_OK: Final = 200
_ID: Final = re.compile(rb'"id"\s*:\s*"(resp[\w.-]{1,124})"')
_NOT_STORED: Final = re.compile(rb'"store"\s*:\s*false')
_GONE: Final = frozenset({"unknown_worker"})
"""Codes of rejections because the worker that the request must go to isn't there."""
_REMEDY: Final = "send the whole conversation as `input`, without `previous_response_id`."


class StoredResponse(NamedTuple):
    """A response that a request names."""

    kept: KeptResponse
    continued: bool
    """Whether the request continues it; otherwise its path names it."""


class StoredResponses:
    """Remembers the responses that this edge passed on, and asks a bucket of all edges for the others."""

    def __init__(self, shared: KeptResponses | None = None) -> None:
        """Without `shared` another edge's responses are unknown."""
        self._known: Final[OrderedDict[str, KeptResponse]] = OrderedDict()
        self._shared: Final = shared
        self.unknown = 0
        """Requests that named a response which no edge knows."""
        self.gone = 0
        """Requests that named a response whose engine is gone or has restarted."""

    def remember_response(self, record: RequestRecord, boot_id: str) -> None:
        """Note the response that a request brought, if it brought one. The first note of an id counts. `boot_id`: of
        the worker that answered."""
        reply, tail = record.reply, record.tail
        if not isinstance(reply, Decision) or not isinstance(tail, BeginningTail) or record.status != _OK:
            return
        found = _ID.search(tail.start)
        if found is None:
            return
        response = found[1].decode("ascii")
        if response in self._known:
            return
        target = record.target or reply.target
        kept = KeptResponse(
            model=reply.model,
            pool=target.pool or "",
            worker=record.worker or "",
            boot_id=boot_id,
            tokens=_told_tokens(record),
            owner=_owner(reply.identity),
        )
        self._known[response] = kept
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        if self._shared is not None and not _says_unstored(record):
            self._shared.keep_response(response, kept)

    async def find_response(self, response: str, config: Config, *, continued: bool) -> StoredResponse | None:
        """Where a response is kept. None: no edge knows, and any client may ask an engine. Raises Refusal for an
        unknown response if clients have identities, since its owner isn't known: 503 while the bucket of all edges
        can't be read."""
        kept = self._known.get(response)
        reachable = True
        if kept is None and self._shared is not None and len(response) <= LONGEST_ID:
            try:
                kept = await self._shared.read_response(response)
            except ResponsesUnreachable:
                reachable = False
        if kept is not None:
            return StoredResponse(kept, continued)
        self.unknown += 1
        if any(identifies(use) for use in config.preprocessing):
            raise unknown_response(continued) if reachable else unreachable_responses()
        return None

    def refuse_restarted(self, stored: StoredResponse, boot_id: str) -> None:
        """Raise Refusal if the engine has restarted since it made the response. `boot_id`: of the worker now; empty if
        it isn't known."""
        if boot_id and stored.kept.boot_id and boot_id != stored.kept.boot_id:
            self.gone += 1
            raise gone_response(stored)

    def refuse_other_client(self, stored: StoredResponse, identity: Identity | None) -> None:
        """Raise Refusal for another client than the response's own, as for an unknown response."""
        if stored.kept.owner != _owner(identity):
            raise unknown_response(stored.continued)

    def explain_rejection(self, stored: StoredResponse, rejection: Rejection) -> Refusal | None:
        """The error where the stages rejected the request because the response's engine can't be asked; None for any
        other rejection."""
        if rejection.code not in _GONE:
            return None
        self.refuse_other_client(stored, rejection.identity)
        asked = None if rejection.target is None else rejection.target.pool
        if stored.continued and asked and stored.kept.pool and asked != stored.kept.pool:
            message = f"The response to continue is of the model {stored.kept.model!r}; ask for that one, or {_REMEDY}"
            return Refusal(400, message, code="previous_response_of_other_model", param="model")
        self.gone += 1
        return gone_response(stored)


def unknown_response(continued: bool) -> Refusal:
    """The error for a response that isn't there for this client, with OpenAI's code where the request continues it."""
    if continued:
        message = f"The previous response isn't known: it may be too old, or not have been stored; {_REMEDY}"
        return Refusal(400, message, code="previous_response_not_found", param=FIELD)
    message = "The response isn't known: it may be too old, or not have been stored."
    return Refusal(404, message, code="response_not_found")


def gone_response(stored: StoredResponse) -> Refusal:
    """The error for a response whose engine is gone."""
    if stored.continued:
        message = f"The engine that kept the previous response has ended, and the response with it; {_REMEDY}"
        return Refusal(400, message, code="previous_response_not_found", param=FIELD)
    message = "The engine that kept the response has ended, and the response with it."
    return Refusal(404, message, code="response_not_found")


def unreachable_responses() -> Refusal:
    """503: the response's owner can't be looked up at the moment."""
    return Refusal(
        503,
        "The gateway can't look up the response at the moment; try again shortly.",
        code="responses_unavailable",
        retry_after_s=1.0,
        dropped_reason="rejected-unavailable",
    )


def _told_tokens(record: RequestRecord) -> int | None:
    """Tokens of prompt and answer, as the engine reported them; None where it didn't, or they can't be right."""
    usage = record.usage
    # A prompt of no tokens is one whose count couldn't be read.
    if usage is None or usage.estimated or not usage.prompt_tokens or record.outcome != "ok":
        return None
    tokens = usage.prompt_tokens + usage.completion_tokens
    return tokens if 0 < tokens <= MOST_TOKENS else None


def _says_unstored(record: RequestRecord) -> bool:
    """Whether the client asked that the response isn't stored."""
    held = record.held
    if held is None or _NOT_STORED.search(held.original) is None:
        return False
    try:
        document: object = orjson.loads(held.original)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and cast("dict[str, object]", document).get("store") is False


def _owner(identity: Identity | None) -> str:
    if identity is None:
        return ""
    return hashlib.sha256(f"{identity.tenant}\0{identity.subject}".encode("utf-8", "surrogatepass")).hexdigest()
