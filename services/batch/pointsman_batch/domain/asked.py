"""Reads what clients ask of the service: the parameters of requests."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, cast

import orjson

from pointsman_batch.domain.lines import ENDPOINTS
from pointsman_core.refusal import Refusal

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNIT_S: Final = {"m": 60, "h": 3600, "d": 86400}
_MOST_METADATA: Final = 16
_EXPIRES: Final = range(3600, 2_592_001)
"""OpenAI's bounds of an expiry, in seconds."""


class WantedBatch(NamedTuple):
    """A batch that a client wants."""

    input_file: str
    endpoint: str
    window: str
    window_s: float
    metadata: dict[str, str] | None
    output_expires_s: int | None


class WantedPage(NamedTuple):
    """A page of a list that a client wants."""

    limit: int
    after: str | None
    before: str | None = None


def read_wanted_batch(body: bytes, longest_window_s: float) -> WantedBatch:
    """The parameters of `POST /v1/batches`. Raises Refusal."""
    document = read_object(body)
    endpoint = _text(document, "endpoint")
    if endpoint not in ENDPOINTS:
        raise _invalid(f"endpoint must be one of {', '.join(ENDPOINTS)}.", "endpoint")
    window = _text(document, "completion_window")
    matched = _WINDOW.fullmatch(window)
    window_s = int(matched[1]) * _UNIT_S[matched[2]] if matched else 0
    if not 0 < window_s <= longest_window_s:
        raise _invalid(
            f"completion_window must be minutes, hours or days, such as 24h, up to {longest_window_s / 3600:g}h.",
            "completion_window",
        )
    return WantedBatch(
        input_file=_text(document, "input_file_id"),
        endpoint=endpoint,
        window=window,
        window_s=window_s,
        metadata=_metadata(document.get("metadata")),
        output_expires_s=read_expiry(document.get("output_expires_after"), "output_expires_after"),
    )


def read_expiry(value: object, name: str) -> int | None:
    """Seconds of `{"anchor": "created_at", "seconds": …}`; None without one. Raises Refusal."""
    if value is None:
        return None
    fields: Mapping[str, object] = cast("Mapping[str, object]", value) if isinstance(value, dict) else {}
    seconds = fields.get("seconds")
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit():
        seconds = int(seconds)
    if fields.get("anchor") != "created_at" or type(seconds) is not int or seconds not in _EXPIRES:
        raise _invalid(
            f'{name} must be {{"anchor": "created_at", "seconds": N}}, N from {_EXPIRES.start} to {_EXPIRES.stop - 1}.',
            name,
        )
    return seconds


def read_page(query: Mapping[str, str], *, usual: int, most: int, after: str = "after") -> WantedPage:
    """The parameters of a list. Raises Refusal."""
    text = query.get("limit", str(usual))
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise _invalid(f"limit must be a number from 1 to {most}.", "limit")
    return WantedPage(int(text), query.get(after), query.get("before_id"))


def read_object(body: bytes) -> dict[str, object]:
    """A JSON object. Raises Refusal."""
    try:
        document = orjson.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Refusal(400, "The body must be a JSON object.", code="invalid_json")
    return cast("dict[str, object]", document)


def _metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else None
    if fields is None or len(fields) > _MOST_METADATA:
        raise _invalid(f"metadata must be an object of at most {_MOST_METADATA} texts.", "metadata")
    for name, text in fields.items():
        if len(name) > 64 or not isinstance(text, str) or len(text) > 512:
            raise _invalid("metadata has names of up to 64 and texts of up to 512 characters.", "metadata")
    return cast("dict[str, str]", fields)


def _text(document: Mapping[str, object], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise Refusal(400, f"The field {name} must be a text.", code="missing_required_parameter", param=name)
    return value


def _invalid(message: str, param: str) -> Refusal:
    return Refusal(400, message, code="invalid_value", param=param)
