"""The lines of an input file: cut from a stream of bytes, and checked one by one."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from pointsman_contracts.batch import LineProblem

METHOD: Final = "POST"
ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/moderations",
)
"""Paths that a batch may be for."""
LONGEST_ID: Final = 512
"""Characters of a `custom_id`."""
MOST_PROBLEMS: Final = 100
"""Problems that a refused batch lists."""
_BOM: Final = b"\xef\xbb\xbf"
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)


class BatchLine(NamedTuple):
    """One request of a batch."""

    number: int
    """Counted from 0; blank lines don't count."""
    custom_id: str
    model: str
    body: bytes


class LineRequest(NamedTuple):
    """A request as it is sent."""

    endpoint: str
    model: str
    body: bytes
    batch: str
    """The id of its batch, or that by which the ledger counts the items of a queue and day."""
    name: str
    """Names it in the batch."""

    @property
    def request_id(self) -> str:
        """Begins the ids of its attempts. The same in each replica, so that an attempt is charged once."""
        return f"{self.batch}-{self.name}"


class LineRefused(ValueError):
    """A line that can't be run."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param

    def at_line(self, line: int) -> LineProblem:
        """The problem, for the batch; `line` is counted from 1."""
        return LineProblem(code=self.code, message=str(self), line=line, param=self.param)


class LineTooLong(ValueError):
    """A line is longer than a request may be."""

    def __init__(self, longest: int, line: int) -> None:
        """`longest`: most bytes of a line; `line` is counted from 1."""
        super().__init__(f"The line is longer than {longest} bytes.")
        self.line = line


class LineSplitter:
    """Cuts bytes into lines, as they come."""

    def __init__(self, longest: int) -> None:
        """`longest`: most bytes of a line."""
        self._longest = longest
        self._ended = 0
        """Lines that have an end."""
        self._begun: list[bytes] = []
        self._size = 0

    def split_bytes(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete now. Raises LineTooLong."""
        first, *others = data.split(b"\n")
        self._add(first)
        for other in others:
            yield self.rest()
            self._add(other)

    def rest(self) -> bytes:
        """The line that has no end yet; the next one begins."""
        line = b"".join(self._begun)
        self._begun, self._size = [], 0
        self._ended += 1
        return line

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._longest:
            raise LineTooLong(self._longest, self._ended + 1)
        if piece:
            self._begun.append(piece)


def read_line(data: bytes, number: int, endpoint: str) -> BatchLine:
    """Check a line. Raises LineRefused."""
    try:
        fields = _FIELDS.decode(data.removeprefix(_BOM) if number == 0 else data)
    except (ValueError, RecursionError):
        raise LineRefused("invalid_json_line", "This line is not parseable as a JSON object.") from None
    custom_id = _text(fields, "custom_id")
    if not 0 < len(custom_id) <= LONGEST_ID:
        raise LineRefused("invalid_custom_id", f"custom_id must have 1 to {LONGEST_ID} characters.", "custom_id")
    method = _text(fields, "method")
    if method != METHOD:
        raise LineRefused("invalid_method", f"method must be {METHOD}.", "method")
    if _text(fields, "url") != endpoint:
        raise LineRefused("url_mismatch", f"url must be {endpoint}, the endpoint of the batch.", "url")
    if "body" not in fields:
        raise LineRefused("missing_required_parameter", "The field body is missing.", "body")
    body = bytes(fields["body"])
    return BatchLine(number, custom_id, model_of_body(body), body)


def model_of_body(body: bytes) -> str:
    """The model of a request. Raises LineRefused for a body that no batch runs."""
    try:
        fields = _FIELDS.decode(body)
    except (ValueError, RecursionError):
        raise LineRefused("invalid_body", "body must be a JSON object.", "body") from None
    model = _text(fields, "model", "body.model")
    if not model:
        raise LineRefused("invalid_model", "body.model must not be empty.", "body.model")
    # A batch has no client that a stream could go to (llm-d/llm-d-batch-gateway #153).
    if bytes(fields.get("stream", b"false")).strip() not in (b"false", b"null"):
        raise LineRefused("stream_not_supported", "body.stream must be false: a batch has no streams.", "body.stream")
    return model


def check_unseen(custom_id: str, seen: set[str]) -> None:
    """Raise LineRefused for an id that is among those seen (sgl-project/sglang #1415); add it otherwise."""
    if custom_id in seen:
        raise LineRefused("duplicate_custom_id", "The custom_id of this line is that of a line before it.", "custom_id")
    seen.add(custom_id)


def _text(fields: Mapping[str, msgspec.Raw], name: str, shown: str | None = None) -> str:
    raw = fields.get(name)
    shown = shown or name
    if raw is None:
        raise LineRefused("missing_required_parameter", f"The field {shown} is missing.", shown)
    try:
        return _TEXT.decode(raw)
    except ValueError:
        raise LineRefused("invalid_type", f"{shown} must be a text.", shown) from None
