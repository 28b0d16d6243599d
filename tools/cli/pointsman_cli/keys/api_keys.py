"""API keys of clients: made, checked and shown. Pure."""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from pydantic import ValidationError
from rich.table import Table

from pointsman_cli.tables import borderless, folding
from pointsman_cli.words import CommandError
from pointsman_contracts.api_key import ApiKey
from pointsman_contracts.message import JsonValue, fields_of
from pointsman_core.budget_amount import amount
from pointsman_core.config.service_level import ServiceLevel
from pointsman_core.wording import wrongs

PREFIX: Final = "pm-"
"""So that a scanner for leaked secrets knows one when it sees it."""
BUDGET: Final = "budget"
"""The entry of a key's limits that `--budget` sets."""
_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_LASTS: Final = re.compile(r"([1-9][0-9]*)(h|d)")


def made(record: ApiKey) -> tuple[str, str, str]:
    """A new key, its hash, and its entry for `api-key-auth` as YAML on one line."""
    key = PREFIX + secrets.token_urlsafe(_BYTES)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return key, digest, json.dumps({"sha256": digest} | _set(record))


def _set(record: ApiKey) -> dict[str, JsonValue]:
    """The fields with other values than those of a key that has only a tenant."""
    plain = fields_of(ApiKey(tenant="")) | {"tenant": None}
    return {name: value for name, value in fields_of(record).items() if plain.get(name) != value}


def named(name: str) -> str:
    """The key's name; generated when `name` is empty. Raises CommandError for an invalid name."""
    if not name:
        return f"key-{secrets.token_hex(4)}"
    if _NAME.fullmatch(name) is None:
        raise CommandError(
            f"--name {name!r}: not a key's name.", "Use letters, digits and . _ @ -, at most 100 of them."
        )
    return name


def limits(entries: Iterable[str], budget: str | None) -> dict[str, str | float]:
    """The entries of `--limit NAME=VALUE`, and the budget. CommandError for a text that is none."""
    found: dict[str, str | float] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not (name and equals and value):
            raise CommandError(f"--limit {entry}: not NAME=VALUE.", "E.g. --limit requests=50/s.")
        found[name] = float(value) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) else value
    if budget is not None:
        try:
            amount(budget)
        except ValueError as error:
            raise CommandError(f"--budget: {error}.") from error
        found[BUDGET] = budget
    return found


def service_level(entries: Iterable[str]) -> dict[str, str | float] | None:
    """The entries of `--slo NAME=VALUE`; None without any. CommandError for a level that is none."""
    found: dict[str, str | float] = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        found[name] = value
    if not found:
        return None
    try:
        ServiceLevel.model_validate(found)
    except ValidationError as error:
        raise CommandError(f"--slo {' '.join(entries)}: {wrongs(error)[0].text}.", "E.g. --slo ttft=800ms.") from error
    return found


def expiry_ms(text: str | None, now: datetime) -> int | None:
    """Unix milliseconds: `90d` and `12h` from now, or the beginning of a day (UTC). CommandError for other texts."""
    if text is None:
        return None
    lasts = _LASTS.fullmatch(text)
    try:
        if lasts is not None:
            number = int(lasts[1])
            at = now + (timedelta(hours=number) if lasts[2] == "h" else timedelta(days=number))
        else:
            at = datetime.fromisoformat(text)
            at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise CommandError(
            f"--expires {text}: neither a time nor a duration in days or hours.", "E.g. 90d, 12h, 2027-01-01."
        ) from None
    if at <= now:
        raise CommandError(f"--expires {text}: that is over.")
    return round(at.timestamp() * 1000)


def table(records: Iterable[ApiKey], now: datetime) -> Table:
    """One row a key."""
    shown = borderless(*folding("name", "tenant", "budget", "models", "expires", "note"))
    for record in sorted(records, key=lambda each: (each.tenant, each.id)):
        shown.add_row(
            record.id or "-",
            record.tenant,
            str(record.limits.get(BUDGET, "-")),
            "all" if record.models is None else ", ".join(record.models) or "none",
            state(record, now),
            record.note,
        )
    return shown


def facts(record: ApiKey, now: datetime) -> Table:
    """One key, a fact a line."""
    shown = Table.grid(padding=(0, 2, 0, 0))
    for name, value in {
        "name": record.id,
        "tenant": record.tenant,
        "subject": record.subject or record.id,
        "plan": record.plan,
        "scopes": ", ".join(record.scopes),
        "models": "all" if record.models is None else ", ".join(record.models) or "none",
        "priority": str(record.priority or ""),
        "limits": ", ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in record.limits.items()
        ),
        "created": "" if record.created_ms is None else _moment(record.created_ms),
        "expires": state(record, now),
        "note": record.note,
    }.items():
        shown.add_row(name, value or "-")
    return shown


def state(record: ApiKey, now: datetime) -> str:
    """Until when it is valid."""
    if record.disabled:
        return "disabled"
    if record.expires_ms is None:
        return "never"
    text = _moment(record.expires_ms)
    return f"expired {text}" if record.expires_ms <= now.timestamp() * 1000 else text


def _moment(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
