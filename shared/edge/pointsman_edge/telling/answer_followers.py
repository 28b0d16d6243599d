"""The response processors at work on one answer. Their errors change no answer."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from pointsman_plugins.responding import AnswerEnd, AnswerFollower
from pointsman_runtime.telling.logs import Log

_log = Log("edge")


class ProcessorFailures:
    """Counts the errors of response processors; the first one of each processor is logged."""

    def __init__(self) -> None:
        self.by_processor: Final[Counter[str]] = Counter()

    def note_failure(self, processor: str, request_id: str, error: Exception) -> None:
        """A processor raised an error: it sees no more of this answer."""
        if processor not in self.by_processor:
            hint = "further ones are counted alone; the answer isn't changed"
            _log.error("response_processor_failed", error, processor=processor, request_id=request_id, hint=hint)
        self.by_processor[processor] += 1


class Follower(NamedTuple):
    processor: str
    follower: AnswerFollower


class AnswerFollowers:
    """The followers of one answer, in the order of their processors."""

    def __init__(self, request_id: str, followers: Sequence[Follower], failures: ProcessorFailures) -> None:
        self._request_id = request_id
        self._followers = followers
        self._failures = failures

    def take_segment(self, data: bytes) -> None:
        """The next bytes of the answer."""
        for each in self._followers:
            try:
                each.follower.take_segment(data)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the answer goes on
                self._drop_follower(each, error)

    def end_answer(self, end: AnswerEnd) -> None:
        """The answer is over."""
        for each in self._followers:
            try:
                each.follower.end_answer(end)
            except Exception as error:  # noqa: BLE001 - as above
                self._drop_follower(each, error)
        self._followers = ()

    def _drop_follower(self, failed: Follower, error: Exception) -> None:
        self._failures.note_failure(failed.processor, self._request_id, error)
        self._followers = [each for each in self._followers if each is not failed]
