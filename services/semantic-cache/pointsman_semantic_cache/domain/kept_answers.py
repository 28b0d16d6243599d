"""Which answers are kept: whole ones without an error, which no guard changed."""

from typing import Final

from pointsman_apis import named
from pointsman_apis.api import Api
from pointsman_apis.streams import EventSplitter, document_of
from pointsman_apis.texts import Answer
from pointsman_contracts.response_stage import ResponseReview
from pointsman_core.config import Cache
from pointsman_semantic_cache.domain.policy import GUARD

_OK: Final = 200
_OBJECTIONS: Final = frozenset({"replaced", "blocked"})
"""Outcomes of a guard that changed or withheld an answer."""
_PASSED: Final = {"passed"}


def refusal(review: ResponseReview, cache: Cache, *, guarded: bool) -> str | None:
    """Why an answer isn't kept, in a word; None when it may be. `guarded`: a guard has to have let it pass."""
    if review.status != _OK or review.outcome != "ok":
        return "error"
    if review.makeshift:
        return "not confident"
    if review.truncated or review.body is None:
        return "no body"
    if len(review.body) > cache.max_answer:
        return "too large"
    said = {report.outcome for report in review.stages if report.stage == GUARD}
    # The guard may have changed an answer for this client alone. A guard in shadow may fail: an unchecked answer is
    # checked when it is given again.
    if said & _OBJECTIONS or (guarded and said != _PASSED):
        return "guard"
    return unworthy(
        named(review.api), review.body, stream=review.stream, tool_calls=cache.tool_calls, cut_short=cache.cut_short
    )


_LIMITED: Final = frozenset({"length", "max_tokens"})


def unworthy(api: Api, body: bytes, *, stream: bool, tool_calls: bool, cut_short: bool = False) -> str | None:
    """Why an answer isn't kept, in a word; None when it may be."""
    documents, last = _events(body) if stream else (_documents(body), b"")
    if documents is None:
        return "not JSON"
    if any(document.get("error") is not None or document.get("type") == "error" for document in documents):
        return "error"
    if stream and api.last_data and last != api.last_data:
        return "incomplete"
    ends = {end for document in documents for end in api.ends(document)}
    if not ends:
        return "incomplete"
    if ends & api.tool_ends or any(map(api.calls_tools, documents)):
        if not tool_calls:
            return "tool calls"
        ends -= api.tool_ends
    cut = ends - api.complete - (_LIMITED if cut_short else frozenset())
    return f"ended by {min(cut)}" if cut else None


def _documents(body: bytes) -> list[Answer] | None:
    document = document_of(body)
    return None if document is None else [document]


def _events(body: bytes) -> tuple[list[Answer] | None, bytes]:
    """The documents of a stream's events, and the data of the last one."""
    splitter = EventSplitter()
    documents: list[Answer] = []
    last = b""
    for event in (*splitter.split_bytes(body), *splitter.rest()):
        if not event.data:
            continue
        last = event.data
        if last == b"[DONE]":
            continue
        if event.document is None:
            return None, last
        documents.append(event.document)
    return documents, last
