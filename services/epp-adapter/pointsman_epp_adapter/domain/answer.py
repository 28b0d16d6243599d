"""An engine's answer as it passes: what is read off it, and what the client gets in its place."""

from typing import Final

from pointsman_apis.api import Api
from pointsman_apis.asked_choices import AskedChoices
from pointsman_apis.stream_ends import missing_end, whole_event
from pointsman_apis.streams import WholeEvents
from pointsman_edge.sending.encoded_answer import ENCODINGS, AnswerDecoder
from pointsman_edge.sending.engine_pause import engine_pause
from pointsman_edge.sending.error_shape import shaped_events
from pointsman_edge.sending.unasked_usage import Rewriting
from pointsman_providers.limits import PAUSE_HEADERS
from pointsman_providers.reported_error import ProviderError

BUFFERED: Final = 2**19
"""A document that announces at most so many bytes comes in one piece; Envoy's buffer takes 1 MiB by default."""
HELD: Final = 2**23
"""A longer document keeps the model's name that the engine wrote: putting another in needs the whole of it."""
_ERROR: Final = 400
_STREAM: Final = b"text/event-stream"
_ERROR_MEMBER: Final = b'"error"'

Header = tuple[bytes, bytes]


class Answer:
    """One answer, from its headers on."""

    def __init__(
        self, headers: list[Header], api: Api, rewriting: Rewriting | None, asked: AskedChoices | None = None
    ) -> None:
        """`rewriting` None: the body isn't changed. `asked`: the choices that an engine was asked for."""
        by_name = dict(headers)
        status = by_name.get(b":status", b"0")
        self.status = int(status) if status.isdigit() else 0
        self.pause = engine_pause(headers) if self.status >= _ERROR else None
        """In place of the engine's headers with a pause; None: it has none."""
        self.content_type = by_name.get(b"content-type", b"")
        self.stream = self.content_type.lower().startswith(_STREAM)
        """Whether it is a stream of events: by its label, until its first bytes tell."""
        encoding = by_name.get(b"content-encoding")
        self._decoder = AnswerDecoder() if encoding is not None and encoding.strip().lower() in ENCODINGS else None
        length = by_name.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() and self._decoder is None else None
        self.rewriting = rewriting
        self.bytes = 0
        self.tail = api.usage()
        """Reads the usage of the answer."""
        self.error: ProviderError | None = None
        """The error that a stream ended with."""
        self.shortened = False
        """The client gets less of a document than the engine sent."""
        self.cut_off = False
        """A stream has ended, and something of the answer is missing."""
        self._api = api
        self._events = WholeEvents()
        self._held: list[bytes] = []
        self._asked = asked
        self._choices = asked.follow_stream() if asked is not None and asked.several else None

    def hidden_headers(self, *, seen: bool) -> tuple[str, ...]:
        """Those of the engine that don't hold for the client's answer. `seen`: the body passes here."""
        gone: tuple[str, ...] = ()
        if self.pause is not None:
            gone = tuple([name for name in PAUSE_HEADERS if not self.pause or name != "retry-after"])
        if self.is_encoded:
            return ("content-length", "content-encoding", *gone)
        changes = self.rewriting is not None or self.shortened or (self.stream and seen)
        return ("content-length", *gone) if changes else gone

    @property
    def is_encoded(self) -> bool:
        """Whether the engine encoded the body; the client gets it decoded."""
        return self._decoder is not None

    def decode_next(self, data: bytes) -> bytes:
        """The next bytes without the engine's encoding. Raises BadEncoding."""
        return data if self._decoder is None else self._decoder.decode_bytes(data)

    def whole_with(self, data: bytes) -> bool:
        """Whether the answer has its announced length after `data`."""
        return self.length is not None and self.bytes + len(data) >= self.length

    @property
    def is_whole(self) -> bool:
        """Whether the answer has its announced length."""
        return self.length is not None and self.bytes >= self.length

    def lacks_choices(self, body: bytes) -> bool:
        """Whether a whole answer isn't one to its request."""
        return self._asked is not None and self.status < _ERROR and bool(self._asked.fault_of_whole(body))

    def feed(self, data: bytes, *, end: bool) -> bytes:
        """The next decoded bytes; returns what the client gets in their place."""
        self.bytes += len(data)
        self.tail.follow_bytes(data)
        if self.stream:
            return self._pass_events(data, end=end)
        if self.rewriting is None:
            return data
        self._held.append(data)
        if not end and self.bytes <= HELD:
            return b""
        body = b"".join(self._held)
        self._held = []
        if self.bytes > HELD:
            self.rewriting = None
            return body
        return self.rewriting.rewrite_bytes(body)

    def _pass_events(self, data: bytes, *, end: bool) -> bytes:
        """Whole events, errors among them in the API's shape; at the end with the mark that the engine left out."""
        whole = self._events.complete_events(data)
        if end:
            whole = whole_event(whole + self._events.rest())
        if _ERROR_MEMBER in whole:
            whole, self.error = shaped_events(self._api, whole, self.error)
        if self._choices is not None and self.error is None:
            whole = b"" if self._choices.fault else self._choices.pass_events(whole)
            if self._choices.fault:
                # The error that takes the place of the rest comes once the engine has ended.
                self.cut_off = end
                return whole if self.rewriting is None else self.rewriting.rewrite_bytes(whole)
        if end and self.error is None:
            lacks = missing_end(self._api, self.tail.end)
            self.cut_off = lacks is None
            whole += lacks or b""
        return whole if self.rewriting is None else self.rewriting.rewrite_bytes(whole)
