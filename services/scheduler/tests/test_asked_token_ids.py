"""Whether an edge may ask an engine for the token ids of an answer."""

import pytest
from pydantic import JsonValue

from pointsman_contracts.journey import FIELDS_LIMIT, RequestFacts
from pointsman_scheduler.binding import token_ids_of


@pytest.mark.parametrize(
    ("api", "stream", "fields", "found"),
    [
        ("chat.completions", True, {}, "unasked"),
        ("completions", True, {"echo": False}, "unasked"),
        ("completions", True, {"echo": True}, "never"),
        ("chat.completions", True, {"return_token_ids": True}, "asked"),
        ("chat.completions", False, {}, "never"),
        ("responses", True, {}, "never"),
        ("chat.completions", True, {f"f{number}": number for number in range(FIELDS_LIMIT)}, None),
    ],
)
def test_token_ids_are_asked_for_where_they_change_nothing_that_the_client_reads(
    api: str, stream: bool, fields: dict[str, JsonValue], found: str | None
) -> None:
    assert token_ids_of(RequestFacts(api=api, stream=stream, fields=fields)) == found
