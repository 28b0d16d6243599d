"""Secrets that the configuration refers to."""

import os
from pathlib import Path


class ReferenceMissing(Exception):
    """The variable or file of a reference is missing, unreadable or empty."""


def read_secret(reference: str) -> str:
    """The value of `env:NAME` or `file:PATH`, without white space around it. Raises ReferenceMissing."""
    kind, _, name = reference.partition(":")
    try:
        text = os.environ.get(name, "") if kind == "env" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        # The error's own text may quote the secret.
        raise ReferenceMissing(f"{reference} can't be read ({type(error).__name__})") from None
    if not text.strip():
        raise ReferenceMissing(f"{reference} is empty or missing")
    return text.strip()
