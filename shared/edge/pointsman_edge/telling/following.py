"""Begins and ends the work of response processors on an answer."""

from collections.abc import Iterable
from functools import cache
from typing import Final, cast

from pointsman_apis.usage import UsageTail
from pointsman_contracts.content import PromptEnd
from pointsman_core.model_tokenizer import counts_alike
from pointsman_edge.telling.answer_followers import AnswerFollowers, Follower, ProcessorFailures
from pointsman_edge.telling.request_record import RequestRecord
from pointsman_plugins.responding import AnswerEnd, AnswerHead, ResponseProcessor

MOVED: Final = "moved"

_Headers = Iterable[tuple[bytes, bytes]]


class _Followed(UsageTail):
    """Passes on what it reads. A class of its own, so that answers without followers pay nothing."""

    followers: AnswerFollowers

    def follow_bytes(self, data: bytes) -> None:
        """The next bytes of the answer, whole or in pieces of any size."""
        super().follow_bytes(data)
        self.followers.take_segment(data)


@cache
def _followed(kind: type[UsageTail]) -> type[_Followed]:
    """The class of tails that read as `kind`, and pass on."""
    return cast("type[_Followed]", type(f"Followed{kind.__name__}", (_Followed, kind), {}))


def begin_answer(
    record: RequestRecord, failures: ProcessorFailures, status: int, stream: bool, headers: _Headers
) -> UsageTail:
    """The tail of an answer whose head is here. The processors of its profile get the head, and as the tail reads, the
    segments; their edits of headers are the request's from now on."""
    tail = record.api.usage()
    decision, target, worker = record.decision, record.target, record.worker
    if record.followers is not None:
        end_answer(record, MOVED)
    if decision is None or target is None or worker is None:
        return tail
    processors = record.policy.response_processors.get(decision.profile)
    if not processors:
        return tail
    pool = record.policy.config.pools.get(target.pool or "")
    head = AnswerHead(
        request_id=record.request_id,
        api=record.api.name,
        profile=decision.profile,
        model=decision.model,
        target=target,
        worker=worker,
        status=status,
        stream=stream,
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in headers},
        answers=decision.answers,
        block_tokens=None if pool is None else pool.block_tokens,
        end=_end_of_prompt(record),
    )
    followers = [*_begun(processors, head, failures)]
    if head.edits:
        record.answer_headers = (*record.answer_headers, *head.edits.values())
    if not followers:
        return tail
    followed = _followed(type(tail))()
    followed.followers = record.followers = AnswerFollowers(record.request_id, followers, failures)
    return followed


def end_answer(record: RequestRecord, outcome: str) -> None:
    """The followed answer of a request is over; its usage is settled."""
    followers, record.followers = record.followers, None
    if followers is not None:
        end = AnswerEnd(outcome=outcome, status=record.status, usage=record.usage)
        followers.end_answer(end)
        record.answer_blocks = end.blocks


def _begun(
    processors: Iterable[ResponseProcessor], head: AnswerHead, failures: ProcessorFailures
) -> Iterable[Follower]:
    for processor in processors:
        try:
            follower = processor.begin_answer(head)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the answer goes on
            failures.note_failure(processor.name, head.request_id, error)
            continue
        if follower is not None:
            yield Follower(processor.name, follower)


def _end_of_prompt(record: RequestRecord) -> PromptEnd | None:
    held, target = record.held, record.target
    end = None if held is None else held.end
    if end is None or target is None or target.pool is None:
        return None
    alike = not end.exact or counts_alike(record.policy.config, end.model, target.pool, target.model)
    return end if alike else None
