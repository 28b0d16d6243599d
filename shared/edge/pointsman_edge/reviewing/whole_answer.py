"""An answer that isn't streamed, while response stages review it: decoded and read once for all of them."""

from collections.abc import Sequence
from typing import Final

import orjson

from pointsman_apis.answers import Reading, read
from pointsman_apis.api import Api
from pointsman_apis.streams import Document, unambiguous
from pointsman_apis.texts import Slot, forget_spelling, put_all
from pointsman_contracts.journey import BodyEdit
from pointsman_core.json_members import edit_fields
from pointsman_core.lenient_json import write
from pointsman_edge.reviewing.surrogates import mend

_NO_TEXT: Final = Reading([], whole=True)


class WholeAnswer:
    """The answer's bytes and, once a stage reads it, its document and texts."""

    def __init__(self, api: Api, body: bytes) -> None:
        self._api = api
        self._body = body
        self._document: Document | None = None
        self._reading: Reading | None = None
        self._strict = True
        """orjson writes the document as it came."""
        self._changed = False
        """The document isn't the bytes any more."""

    @property
    def edited_body(self) -> bytes:
        """The body for the client: the engine's own bytes, unless a stage changed something."""
        if self._changed:
            self._body = write(self._document, strict=self._strict)
            self._changed = False
        return self._body

    @property
    def document(self) -> Document | None:
        """The answer's object; None when it isn't one JSON object that every reader reads alike."""
        if self._document is None:
            self._document, self._strict = unambiguous(self._body)
            if self._document is not None and not self._strict:
                mend(self._document)
        return self._document

    @property
    def reading(self) -> Reading | None:
        """All texts of the answer; None when some part of it can't be read."""
        if self._reading is None:
            document = self.document
            if document is not None:
                self._reading = read(self._api, document)
            elif not self._body.strip():
                self._reading = _NO_TEXT
        return self._reading if self._reading is not None and self._reading.whole else None

    def replace_texts(self, texts: Sequence[tuple[Slot, str]]) -> None:
        """Put other texts in their places. Raises ValueError where JSON belongs and isn't."""
        put_all(texts)
        forget_spelling(self._document)
        self._changed = True
        self._reading = None

    def set_fields(self, fields: Sequence[BodyEdit]) -> None:
        """Set and remove fields of the top level; every other byte stays. Raises ValueError when there are none to
        set."""
        if self.document is None:
            raise ValueError("the answer is not a JSON object")
        edits = {edit.field: None if edit.remove else orjson.dumps(edit.value) for edit in fields}
        self._body, self._document, self._reading = edit_fields(self.edited_body, edits), None, None
