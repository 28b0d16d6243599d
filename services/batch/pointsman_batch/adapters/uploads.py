"""Uploads of files: a multipart form is read as it comes, and its file is written in chunks."""

from collections.abc import AsyncIterator
from typing import Final

from python_multipart.multipart import MultipartParser, parse_options_header

from pointsman_batch.adapters.files import FileWriter
from pointsman_core.refusal import Refusal

_LONGEST_FIELD: Final = 4096
_MOST_FIELDS: Final = 16
_MOST_HEADERS: Final = 8192


class UploadedForm:
    """The fields of an upload, and the name of its file."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None


class _Parts:
    """The parser's reports, gathered until they can be awaited."""

    def __init__(self) -> None:
        self.form: Final = UploadedForm()
        self.content: list[bytes] = []
        self.complete = False
        self._name = b""
        self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._field = ""
        self._in_file = False
        self._text = bytearray()

    def on_part_begin(self) -> None:
        self._headers = {}
        self._name = self._value = b""
        self._text = bytearray()
        self._in_file = False

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._check_headers()

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_headers()

    def on_header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._field = options.get(b"name", b"").decode("utf-8", "replace")
        filename = options.get(b"filename")
        self._in_file = self._field == "file"
        if self._in_file:
            if self.form.filename is not None:
                raise Refusal(400, "The form has more than one file.", param="file")
            self.form.filename = (filename or b"").decode("utf-8", "replace")[:256] or "upload.jsonl"
        elif len(self.form.fields) >= _MOST_FIELDS:
            raise Refusal(400, f"The form has more than {_MOST_FIELDS} fields.")

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self.content.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _LONGEST_FIELD:
            raise Refusal(400, f"A field of the form has more than {_LONGEST_FIELD} bytes.")

    def on_part_end(self) -> None:
        if not self._in_file:
            self.form.fields[self._field] = self._text.decode("utf-8", "replace")

    def on_end(self) -> None:
        self.complete = True

    def _check_headers(self) -> None:
        if len(self._name) + len(self._value) > _MOST_HEADERS:
            raise Refusal(400, "A header of the form is too long.")


async def read_upload(
    content_type: str, body: AsyncIterator[bytes], writer: FileWriter, most_bytes: int
) -> UploadedForm:
    """Read a form and write its file. Raises Refusal and what `FileWriter.write` raises; then give the file up."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise Refusal(400, "Send the file as multipart/form-data, in the field `file`.", code="invalid_content_type")
    parts = _Parts()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": parts.on_part_begin,
            "on_header_field": parts.on_header_field,
            "on_header_value": parts.on_header_value,
            "on_header_end": parts.on_header_end,
            "on_headers_finished": parts.on_headers_finished,
            "on_part_data": parts.on_part_data,
            "on_part_end": parts.on_part_end,
            "on_end": parts.on_end,
        },
    )
    async for data in body:
        try:
            parser.write(data)
        except ValueError as error:  # the parser's error is one
            raise Refusal(400, "The form can't be read.", code="invalid_form", detail=str(error)) from None
        content, parts.content = parts.content, []
        for piece in content:
            if writer.size + len(piece) > most_bytes:
                raise Refusal(413, f"The file has more than {most_bytes} bytes.", code="file_too_large", param="file")
            await writer.write(piece)
    if not parts.complete:
        raise Refusal(400, "The form has no end.", code="invalid_form")
    if parts.form.filename is None:
        raise Refusal(400, "The form has no field `file`.", code="missing_required_parameter", param="file")
    await writer.finish()
    return parts.form
