"""Keys are made, checked and shown without a server."""

import hashlib
from datetime import UTC, datetime

import pytest
from rich.console import Console

from pointsman_cli.keys import api_keys
from pointsman_cli.words import CommandError
from pointsman_contracts.api_key import ApiKey

NOW = datetime(2026, 11, 23, 7, tzinfo=UTC)
KEY = ApiKey(
    id="ci",
    tenant="acme",
    models=("llama-*",),
    limits={"budget": "50/month", "requests": 5.0},
    expires_ms=round(datetime(2027, 1, 1, tzinfo=UTC).timestamp() * 1000),
    note="build server",
)


def printed(part: object, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(part)
    return capture.get()


def test_a_key_is_random_and_its_hash_is_all_that_is_kept() -> None:
    key, digest, entry = api_keys.made(KEY)
    assert key.startswith("pm-")
    assert hashlib.sha256(key.encode()).hexdigest() == digest
    assert key not in entry
    assert api_keys.made(KEY)[0] != key


def test_limits_are_amounts_and_the_budget_is_one_of_them() -> None:
    assert api_keys.limits(["requests=50/s", "open=4"], "50/month") == {
        "requests": "50/s",
        "open": 4.0,
        "budget": "50/month",
    }
    for wrong in (["requests"], ["=5"], ["x="]):
        with pytest.raises(CommandError, match="NAME=VALUE"):
            api_keys.limits(wrong, None)
    with pytest.raises(CommandError, match="write dollars and a period"):
        api_keys.limits([], "50")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90d", datetime(2027, 2, 21, 7, tzinfo=UTC)),
        ("12h", datetime(2026, 11, 23, 19, tzinfo=UTC)),
        ("2027-01-01", datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_an_expiry_is_a_duration_or_a_day(text: str, at: datetime) -> None:
    assert api_keys.expiry_ms(text, NOW) == round(at.timestamp() * 1000)


@pytest.mark.parametrize("wrong", ["soon", "0d", "2020-01-01", "99999999999d"])
def test_an_expiry_that_is_none_or_over_is_refused(wrong: str) -> None:
    with pytest.raises(CommandError, match="--expires"):
        api_keys.expiry_ms(wrong, NOW)


def test_a_name_is_given_or_made() -> None:
    assert api_keys.named("ci") == "ci"
    assert api_keys.named("") != api_keys.named("")
    with pytest.raises(CommandError, match="not a key's name"):
        api_keys.named("two words")


def test_keys_are_shown_within_eighty_columns() -> None:
    text = printed(api_keys.table([KEY, ApiKey(tenant="other", disabled=True)], NOW))
    for part in ("ci", "acme", "50/month", "llama-*", "2027-01-01 00:00", "build", "disabled"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80
    one = printed(api_keys.facts(KEY, NOW))
    assert "budget=50/month, requests=5" in one
    assert api_keys.state(KEY, datetime(2028, 1, 1, tzinfo=UTC)).startswith("expired")
