"""Errors that a provider reports in the body of an answer: of any status, or as an event of a stream.

Providers send an error with status 200, too: a proxy in front of the model has sent the head before the model failed.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from pointsman_providers.error_status import status_of

LONGEST_MESSAGE: Final = 2000
_LONGEST_DETAILS: Final = 8192
"""Characters of the further members of an error that the client gets."""
_NAMES: Final = ("message", "Message", "detail", "error_description", "msg", "error")
"""Members that hold an error's message; the first one counts."""
_KNOWN: Final = frozenset({*_NAMES, "type", "code", "status", "param", "object", "__type"})
_NUMBERS: Final = ("status", "status_code", "code", "http_code", "httpStatusCode", "originalStatusCode")
"""Members that may hold a status."""
_FIRST: Final = 400
_LAST: Final = 599
_NAME: Final = re.compile(r"[\w.:/-]{1,64}", re.ASCII)

Fields = Mapping[str, object]


class ProviderError(NamedTuple):
    """One error."""

    status: int
    """HTTP status that the error's kind has; 502 where it names none."""
    kind: str | None
    """The provider's own name for it, e.g. `overloaded_error`; the more exact one of its type and code."""
    type: str | None
    message: str
    """May quote the request: for the client alone."""
    param: str | None
    more: dict[str, object]
    """Further members, e.g. Azure's `innererror`."""
    kinds: tuple[str, ...] = ()
    """All names that the provider gave it: its code, type and reasons."""
    pause: str | None = None
    """The pause that it asks for in its details, e.g. `34.07s`."""


def error_in(document: object) -> ProviderError | None:
    """The error that a document or an event is; None where it is something else."""
    if isinstance(document, list):  # as Google's APIs write it
        found = cast("list[object]", document)
        return error_in(found[0]) if len(found) == 1 else None
    fields = _object(document)
    if "error" in (fields.get("type"), fields.get("object")):
        return read_error(fields)
    if fields.get("object") == "response" or isinstance(fields.get("response"), dict):
        return _of_response(fields)
    return read_error(fields) if fields.get("error") else _of_choices(fields)


def read_error(document: object, status: int | None = None) -> ProviderError:
    """The members of a document that is an error. `status`: of its answer, where that says that it is one."""
    found: list[object] = cast("list[object]", document) if isinstance(document, list) else [document]
    fields: Fields = _object(found[0]) if found else {}
    inner: Fields = _object(fields.get("error")) or fields
    message = next((text for name in _NAMES if isinstance(text := inner.get(name), str)), "")
    # Of a number and a name the name says more; a code is more exact than a type.
    names = [inner.get(name) for name in ("code", "status", "type", "__type")]
    names = [name for name in map(_name, names) if name is not None]
    kind = names[0] if names else None
    details = [_object(each) for each in _list(inner.get("details"))]
    reasons = filter(None, (_name(each.get("reason")) for each in details))
    # Google's `RetryInfo`: its APIs answer 429 without a header (vercel/ai #18627).
    pause = next((delay for each in details if isinstance(delay := each.get("retryDelay"), str)), None)
    param = inner.get("param")
    if detail := _list(fields.get("detail")):
        message, param = _invalid(detail)
    more = {name: value for name, value in inner.items() if name not in _KNOWN and value is not None}
    return ProviderError(
        status=status or _status(inner) or _status(fields) or next(filter(None, map(status_of, names)), 502),
        kind=kind,
        type=_name(inner.get("type")),
        message=message[:LONGEST_MESSAGE],
        param=param if isinstance(param, str) else None,
        more=more if len(str(more)) <= _LONGEST_DETAILS else {},
        kinds=(*names, *reasons),
        pause=pause,
    )


def _status(fields: Fields) -> int | None:
    for name in _NUMBERS:
        value = fields.get(name)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and _FIRST <= value <= _LAST:
            return value
    return None


def _of_response(fields: Fields) -> ProviderError | None:
    """The error of an OpenAI response that failed before it had any content."""
    response = _object(fields.get("response")) or fields
    return read_error(response) if response.get("status") == "failed" and not response.get("output") else None


def _of_choices(fields: Fields) -> ProviderError | None:
    """The error in a choice: OpenRouter reports a failure of the model behind it there."""
    for choice in _list(fields.get("choices")):
        members = _object(choice)
        if isinstance(members.get("error"), dict) or members.get("finish_reason") == "error":
            return read_error(members)
    return None


def _invalid(details: list[object]) -> tuple[str, str | None]:
    """Message and field of FastAPI's report on a body that its model doesn't allow."""
    first: Fields = _object(details[0])
    names = [str(name) for name in _list(first.get("loc"))]
    message = first.get("msg")
    return message if isinstance(message, str) else "", ".".join(names[1:]) or None


def _name(value: object) -> str | None:
    """A name of a kind of error; None for a number, and for what only says that it is an error."""
    if not isinstance(value, str) or value == "error" or value.isdigit():
        return None
    return value if _NAME.fullmatch(value) else None


def _object(value: object) -> Fields:
    """The members of an object; none of anything else."""
    return cast("Fields", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    """The entries of a list; none of anything else."""
    return cast("list[object]", value) if isinstance(value, list) else []
