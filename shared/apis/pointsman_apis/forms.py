"""Bodies of `multipart/form-data`, read by the parser that vLLM and SGLang read them with."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pointsman_core.refusal import Refusal

KIND: Final = b"multipart/form-data"
_UTF8: Final = frozenset({b"utf-8", b"utf8"})


class FormField(NamedTuple):
    """A text member of a form."""

    name: str
    value: str
    start: int
    end: int
    """Where the value stands in the body; both 0 for an empty one."""


class Form(NamedTuple):
    """A form, without the content of its files."""

    fields: list[FormField]
    files: int

    def read_member(self, name: str) -> str | None:
        """The value of a member; None where it is absent. Raises Refusal 400 for a member that occurs twice."""
        values = [field.value for field in self.fields if field.name == name]
        if len(values) > 1:
            raise Refusal(400, f"The form has {name!r} twice; send it once.", param=name, code="duplicate_member")
        return values[0] if values else None


def is_form(body: bytes | memoryview) -> bool:
    """Whether a body that was accepted is a form. The others are JSON, which never begins like one."""
    return bytes(body[:2]) == b"--"


def read_form(body: bytes, content_type: str) -> Form:
    """Read a form. Raises Refusal: 415 for another content type, 400 for a form that isn't whole.

    The body must begin with the boundary of `content_type`, so that `read_again` finds the same members without it.
    """
    kind, options = parse_options_header(content_type.encode())
    boundary = options.get(b"boundary")
    if kind != KIND or not boundary or options.get(b"charset", b"utf-8").lower() not in _UTF8:
        raise Refusal(
            415,
            "The body on this path must be multipart/form-data with a boundary, in UTF-8.",
            code="unsupported_content_type",
        )
    if not body.startswith(b"--%b\r\n" % boundary):
        raise _broken()
    return _read(body, boundary)


def read_again(body: bytes) -> Form:
    """Like `read_form`, for a body that was accepted before."""
    return _read(body, body[2 : body.index(b"\r\n")])


def edit_form(body: bytes, changes: Mapping[str, str]) -> bytes:
    """The body with other values for text members that it has; every other byte stays. It was accepted before."""
    if not changes:
        return body
    pieces: list[bytes] = []
    position = 0
    for field in read_again(body).fields:
        value = changes.get(field.name)
        if value is not None and field.end:
            pieces += (body[position : field.start], value.encode())
            position = field.end
    return b"".join((*pieces, body[position:]))


def _read(body: bytes, boundary: bytes) -> Form:
    reader = _Reader()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": reader.begin,
                "on_header_field": reader.header_name,
                "on_header_value": reader.header_value,
                "on_part_data": reader.data,
                "on_part_end": reader.end,
                "on_end": reader.close,
            },
        )
        parser.write(body)
    except (FormParserError, UnicodeDecodeError) as error:
        raise _broken() from error
    if not reader.complete:
        raise _broken()
    return Form(reader.fields, reader.files)


def _broken() -> Refusal:
    return Refusal(400, "The form is cut off or isn't multipart/form-data.", code="invalid_form")


class _Reader:
    def __init__(self) -> None:
        self.fields: list[FormField] = []
        self.files = 0
        self.complete = False
        self._header = b""
        self._disposition = b""
        self._body = b""
        self._start = self._end = 0

    def begin(self) -> None:
        self._disposition = b""
        self._start = self._end = 0

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._header = data[start:end].lower()

    def header_value(self, data: bytes, start: int, end: int) -> None:
        if self._header == b"content-disposition":
            self._disposition = data[start:end]

    def data(self, data: bytes, start: int, end: int) -> None:
        # The body is written at once: these are places in it.
        self._body = data
        self._start = self._start or start
        self._end = end

    def end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name")
        if name is None:
            raise FormParserError("a part without a name")
        if b"filename" in options:
            self.files += 1
            return
        value = self._body[self._start : self._end].decode()
        self.fields.append(FormField(name.decode(), value, self._start, self._end))

    def close(self) -> None:
        self.complete = True
