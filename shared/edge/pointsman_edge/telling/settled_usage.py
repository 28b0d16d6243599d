"""The usage of a request that ended otherwise than well, or without a report that can be read: estimated from the
answer that passed.

A client that leaves early cuts off the report at the end of the answer, some engines make none, and others report zero
or what isn't a number.
"""

from typing import Final

from msgspec.structs import replace

from pointsman_apis.answers import slots_of
from pointsman_apis.api import Api
from pointsman_apis.streams import Document, EventSplitter, lenient_document
from pointsman_apis.usage import UsageTail
from pointsman_contracts.response import Usage

CHARACTERS_PER_TOKEN: Final = 4
"""To estimate the tokens of a text."""
_ONE_TOKEN: Final = 8
"""Engines send an event for each token. Events with more characters than this on average are a provider's, which
gathers several."""
_BEGUN: Final = 2
"""A stream of Anthropic's API reports a few output tokens at its beginning and all of them at its end: a report that
is lower than the text that passed by more than this factor is the first one."""
_BEGINNING: Final = 4
"""Events without text at the beginning of a stream, at most."""
BROKEN_OFF: Final = frozenset({"client_gone", "cut_off", "timeout", "shutdown", "blocked"})
"""Outcomes of requests whose answer may be incomplete."""
_ERROR: Final = 400


def settled(
    api: Api,
    outcome: str,
    status: int,
    tail: UsageTail | None,
    reported: Usage | None,
    prompt_tokens: int,
    *,
    sent: bool,
    chunked: bool = False,
) -> Usage | None:
    """`tail`: the answer, if one began. `reported`: in the answer, or by a provider beside it. `prompt_tokens`: as the
    stages counted them. `sent`: the request was sent to an endpoint. `chunked`: set `Usage.chunks`. None if no endpoint
    worked on it."""
    broken = outcome in BROKEN_OFF
    if tail is None or not tail.size:
        if reported is not None:
            return reported
        # The engine had the prompt. It isn't charged for a failure that isn't the client's.
        return (
            Usage(prompt_tokens=prompt_tokens, estimated=True, cached_unknown=True)
            if sent and outcome == "client_gone"
            else None
        )
    if reported is not None and not broken:
        return _plausible(api, tail, reported, prompt_tokens)
    if not broken and (status >= _ERROR or outcome != "ok"):
        return None
    seen, chunks = _completion_tokens(api, tail)
    if reported is None:
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=seen,
            estimated=True,
            cached_unknown=True,
            chunks=chunks if chunked else None,
        )
    if seen > _BEGUN * reported.completion_tokens:
        reported = replace(reported, completion_tokens=seen, estimated=True)
    return _plausible(api, tail, reported, prompt_tokens)


def doubtful(usage: Usage) -> bool:
    """Whether a report has a count of zero, which stands for what can't be read, too."""
    return not (usage.prompt_tokens and usage.completion_tokens)


def _plausible(api: Api, tail: UsageTail, reported: Usage, prompt_tokens: int) -> Usage:
    """The report; a count of zero where there was something to count is replaced by an estimate."""
    prompt = reported.prompt_tokens or prompt_tokens
    completion = reported.completion_tokens or _completion_tokens(api, tail)[0]
    if (prompt, completion) == (reported.prompt_tokens, reported.completion_tokens):
        return reported
    return replace(reported, prompt_tokens=prompt, completion_tokens=completion, estimated=True)


def _completion_tokens(api: Api, tail: UsageTail) -> tuple[int, int | None]:
    """And of a stream, its events with text."""
    if not api.generates:
        return 0, None
    if not tail.events:
        document = lenient_document(tail.end) if len(tail.end) == tail.size else None
        # A document that is incomplete, too long to be kept or of unknown form counts as text.
        size = tail.size if document is None or api.passed else sum(_characters(api, document))
        return -(-size // CHARACTERS_PER_TOKEN), None
    splitter = EventSplitter()
    events = [*splitter.split_bytes(tail.end), *splitter.rest()]
    if len(tail.end) < tail.size:
        del events[0]  # its beginning isn't there any more
    documents = filter(None, (lenient_document(event.data) for event in events))
    lengths = [sum(_characters(api, document)) for document in documents]
    texts = [length for length in lengths if length]
    if not texts:
        return 0, 0
    average = sum(texts) / len(texts)
    each = 1.0 if average <= _ONE_TOKEN else average / CHARACTERS_PER_TOKEN
    if len(tail.end) == tail.size:
        return max(1, round(len(texts) * each)), len(texts)
    passed = tail.events * len(texts) / len(events)
    return max(1, round(passed * each)), max(1, int(passed) - _BEGINNING)


def _characters(api: Api, document: Document) -> list[int]:
    """Characters of the new texts in a document or an event that a model generated."""
    slots = slots_of(api, document)
    new = [slot for slot in slots if not slot.repeats and slot.kind not in ("error", "result")]
    # Engines repeat reasoning under several names.
    thoughts = {(slot.choice, slot.text) for slot in new if slot.kind == "reasoning"}
    return [len(text) for _, text in thoughts] + [len(slot.text) for slot in new if slot.kind != "reasoning"]
