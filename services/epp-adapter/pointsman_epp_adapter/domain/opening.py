"""The beginning of an engine's answer, held until it says something: an error with status 200 gets its own status."""

from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.streams import without_mark
from pointsman_edge.sending.error_shape import SaysNothing, error_in_place
from pointsman_edge.sending.first_events import FirstEvents, InPlaceOfAnswer
from pointsman_epp_adapter.domain.answer import Answer
from pointsman_providers.exchange import FIRST_BYTES, first_bytes, is_stream

WHOLE: Final = 2**20
"""A document of more bytes passes as it comes, so that its errors do, too."""


class SaidNothing(Exception):
    """The answer ended before it said anything."""


class Opening:
    """One answer, from the first byte of its body."""

    def __init__(self, answer: Answer, api: Api) -> None:
        self._answer: Final = answer
        self._api = api
        self._held: list[bytes] = []
        self._size = 0
        self._seen = False
        """Whether the first bytes have told what the answer is."""
        self._first = FirstEvents()
        self.given_up = False
        """The head has left: all bytes go on."""

    def feed(self, data: bytes, *, last: bool) -> bytes | None:
        """Take the next decoded bytes. Returns those that go on, all that were held among them; None while they are
        held. Raises InPlaceOfAnswer, and SaidNothing."""
        self._held.append(data)
        self._size += len(data)
        if self.given_up:
            return self._let_go()
        if not self._seen:
            begun = b"".join(self._held)
            if not (begun or last) or not self._look(begun, last=last):
                return None
            data = begun
        if not self._answer.stream:
            return self._document(last=last)
        if self._first.feed(data, last=last):
            return self._let_go()
        if last:
            raise SaidNothing
        return None

    def _look(self, begun: bytes, *, last: bool) -> bool:
        """Find out what the answer is, whatever it is labelled; False: too little of it has come."""
        answer = self._answer
        if answer.stream is begun.startswith(b"{"):
            if len(first_bytes(begun)) < FIRST_BYTES and not last:
                return False
            answer.stream = is_stream(answer.content_type.decode("latin-1"), begun)
        self._seen = True
        return True

    def _document(self, *, last: bool) -> bytes | None:
        if self._size > WHOLE:
            return self._let_go()
        if not last:
            return None
        sent = self._let_go()
        body = without_mark(sent)
        self._answer.shortened = len(body) < len(sent)
        try:
            error = error_in_place(self._api, body)
        except SaysNothing:  # Envoy asks no other endpoint any more
            return body
        if error is not None:
            raise InPlaceOfAnswer(error)
        if self._answer.lacks_choices(body):
            raise SaidNothing
        return body

    def _let_go(self) -> bytes:
        held = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held = []
        return held
