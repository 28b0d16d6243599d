"""Structured logs: an event name and named fields, as JSON or for a person's eyes.

Prompt text never reaches a log. A log call takes an event name and scalar fields, nothing to format. The text
of an exception may quote what a client sent, so it is written only for exceptions whose text comes from this
project or the operating system; of every other one the log has the type and the place.
"""

import json
import logging
import sys
import time
import traceback
from types import TracebackType
from typing import Final, Literal, TextIO

Field = str | int | float | bool | None
"""The type of a log line's field."""

Form = Literal["json", "human"]

LONGEST_TEXT: Final = 500
"""Characters of one field; more is cut."""

_FIELDS = "pointsman_fields"
_FRAMES = 6

_ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class Quotable(Exception):
    """Base of exceptions whose text this project writes from facts; a log may quote it."""


_QUOTABLE = (Quotable, OSError)


class Log:
    """Writes the events of one part of a service, e.g. `Log("bus").info("connected", server=url)`."""

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"pointsman.{part}")

    def debug(self, event: str, /, **fields: Field) -> None:
        """For a developer; off by default."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Field) -> None:
        """Something an operator wants to see once."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Field) -> None:
        """Something is degraded."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, error: BaseException | None = None, **fields: Field) -> None:
        """Something failed; `error` adds its type and place, and its text where that can't quote a client."""
        if error is not None:
            fields |= describe(error)
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Field]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={_FIELDS: fields})


def describe(error: BaseException) -> dict[str, Field]:
    """An exception as log fields: type, the last frames, and the text where that can't quote a client."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    fields: dict[str, Field] = {
        "error": type(error).__name__,
        "at_code": " < ".join(
            f"{frame.name} {frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in reversed(frames)
        ),
    }
    if isinstance(error, _QUOTABLE):
        fields["detail"] = str(error)
    return fields


def configure(form: Form, level: str, service: str, instance: str, to: TextIO = sys.stdout) -> None:
    """Send everything that this process logs, libraries included, to `to` in one form."""
    handler = logging.StreamHandler(to)
    handler.setFormatter(_Json(service, instance) if form == "json" else _Human(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("pointsman").setLevel(level.upper())


class _Fields(logging.Formatter):
    def fields_of(self, record: logging.LogRecord) -> dict[str, Field]:
        """The named fields; for a library's record its exception, whose text is withheld."""
        found: dict[str, Field] = dict(getattr(record, _FIELDS, {}))
        info: _ExceptionInfo | tuple[None, None, None] | None = record.exc_info
        if info is not None and info[1] is not None:
            found |= describe(info[1])
        return {
            name: value[:LONGEST_TEXT] + "…" if isinstance(value, str) and len(value) > LONGEST_TEXT else value
            for name, value in found.items()
        }

    def event_of(self, record: logging.LogRecord) -> str:
        """Our event name; of a library's record the message, which has no request content at WARNING."""
        return record.getMessage()[:LONGEST_TEXT]


class _Json(_Fields):
    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._constant = {"service": service, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "at": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
                "level": record.levelname.lower(),
                **self._constant,
                "part": record.name.removeprefix("pointsman."),
                "event": self.event_of(record),
                **self.fields_of(record),
            },
            ensure_ascii=False,
        )


class _Human(_Fields):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        pairs = " ".join(f"{name}={_shown(value)}" for name, value in self.fields_of(record).items())
        return f"{clock} {record.levelname:7} {self._service}: {self.event_of(record)} {pairs}".rstrip()


def _shown(value: Field) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(c.isspace() for c in text) or not text else text
