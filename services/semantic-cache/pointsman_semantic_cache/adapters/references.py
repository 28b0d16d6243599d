"""What the configuration only refers to."""

import os
from pathlib import Path


class ReferenceMissing(Exception):
    """There is nothing where a reference points to."""


def secret(reference: str) -> str:
    """What `env:NAME` or `file:PATH` holds, without white space around it. Raises ReferenceMissing."""
    kind, _, name = reference.partition(":")
    try:
        text = os.environ.get(name, "") if kind == "env" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ReferenceMissing(f"{reference} can't be read: {error.strerror}") from error
    if not text.strip():
        raise ReferenceMissing(f"{reference} is empty or missing")
    return text.strip()
