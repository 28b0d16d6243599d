"""The section of a work queue."""

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, field_validator, model_validator

from pointsman_core.config.section import Section
from pointsman_core.references import SecretReference
from pointsman_core.units import PositiveDuration
from pointsman_core.url_addresses import check_url

QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_URL: Final = re.compile(r"[!-\[\]-~]{1,2048}")
"""Visible ASCII characters without a backslash, which some parsers read as a slash."""
_STEPS: Final = re.compile(r"(?:^|/)(?:\.|%2e){1,2}(?:/|$)|%2f|%5c", re.IGNORECASE)
"""Parts of a path that lead elsewhere where a server resolves or decodes them."""


class WorkQueue(Section):
    """Work of producers that publish on the queue's subject. Who may publish there is the NATS server's to say."""

    tenant: str = ""
    """The tenant of the requests, as of an API key: limits, budgets and the ledger count them for it."""
    subject: str = ""
    """The user within the tenant; by default `queue/<name>`."""
    models: tuple[str, ...] | None = None
    """Models and patterns that the requests may use; by default all."""
    window: PositiveDuration = Field(default=86_400.0, le=7 * 86_400)
    """How long after its publication an item may run, where the item doesn't say."""
    callbacks: tuple[str, ...] = ()
    """URLs that an item's `callback` may begin with, up to a whole part of the path. Without any, no item may have
    one."""
    private: bool = False
    """Whether callbacks may go to private addresses."""
    secrets: tuple[SecretReference, ...] = Field(default=(), max_length=4)
    """References, never secrets: `env:NAME` or `file:PATH`, read by the service `batch`. Callbacks are signed with each
    of them (Standard Webhooks), so that a secret can be replaced without a gap."""

    @field_validator("callbacks")
    @classmethod
    def _are_urls(cls, callbacks: tuple[str, ...]) -> tuple[str, ...]:
        for url in callbacks:
            parts = split_callback(url)
            if parts is None or parts.query:
                raise ValueError(f"{url!r}: write `https://host/path`, without user, query, fragment and `..`")
        return callbacks

    @model_validator(mode="after")
    def _check_callbacks(self) -> "WorkQueue":
        for url in self.callbacks:
            check_url(url, private=self.private)
        return self

    def allows_callback(self, url: str) -> bool:
        """Whether an item may name this URL: scheme, host and port of one of `callbacks`, and its path or one below."""
        parts = split_callback(url)
        return parts is not None and any(_covers(split_callback(allowed), parts) for allowed in self.callbacks)


def split_callback(url: str) -> SplitResult | None:
    """The parts of a URL that two parsers can't read differently; None for any other text."""
    if not _URL.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    written = parts.netloc.lower()
    plain = parts.hostname is not None and written.removesuffix(f":{port}").strip("[]") == parts.hostname
    if parts.scheme not in ("http", "https") or not plain or "#" in url or _STEPS.search(parts.path):
        return None
    return parts


def _covers(allowed: SplitResult | None, parts: SplitResult) -> bool:
    if allowed is None or _origin(allowed) != _origin(parts):
        return False
    stem = allowed.path.rstrip("/")
    return parts.path == stem or parts.path.startswith(f"{stem}/") or not (stem or parts.path)


def _origin(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
