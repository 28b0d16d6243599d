"""A request to try a policy with, from a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from pointsman_apis import APIS
from pointsman_cli.words import CommandError


class SampleRequest(NamedTuple):
    """A request to try."""

    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


def read_sample(file: Path, header: Sequence[str]) -> SampleRequest:
    """`{"path", "headers", "body"}`, or a body alone. `header`: `name: value`, added to the file's. Raises CommandError
    for any other content."""
    try:
        document = cast("object", json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise CommandError(f"{file} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"{file} isn't JSON: {error}.") from error
    if not isinstance(document, dict):
        raise CommandError(f"{file} isn't a JSON object.")
    whole = cast("dict[str, object]", document)
    body = whole.get("body")
    if not isinstance(body, dict):
        whole = {"body": whole}
        body = whole["body"]
    named = whole.get("headers")
    given = cast("dict[str, object]", named) if isinstance(named, dict) else {}
    headers = [(name.lower().encode(), str(value).encode()) for name, value in given.items()]
    for text in header:
        name, colon, value = text.partition(":")
        if not colon:
            raise CommandError(f"--header {text.split(' ')[0]!r}: write `name: value`.")
        headers.append((name.strip().lower().encode(), value.strip().encode()))
    path = whole.get("path") or _likely_path(cast("dict[str, object]", body))
    paths = [api.path for api in APIS if api.body == "json"]
    if path not in paths:
        raise CommandError(f"{path!r} isn't the path of an API; the paths are {', '.join(paths)}.")
    # Written as it was read, NaN and depth included: the preprocessor does the checks.
    return SampleRequest(cast("str", path), headers, json.dumps(body).encode())


def _likely_path(body: Mapping[str, object]) -> str:
    if "messages" in body:
        return "/v1/chat/completions"
    return "/v1/completions" if "prompt" in body else "/v1/responses"
