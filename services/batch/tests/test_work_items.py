"""Items of work queues are read, or refused with words for their producers; callbacks go only where a queue allows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_batch.domain.work_items import (
    LONGEST_WINDOW_MS,
    ItemRefused,
    StoredItem,
    WorkRequest,
    identity_of,
    read_item,
)
from pointsman_contracts.batch import created_ms_of
from pointsman_core.config import Config, ConfigError, load
from pointsman_core.config.work_queue import WorkQueue

DAY_MS = 86_400_000
BODY: dict[str, object] = {"model": "m", "messages": []}


def queue(*callbacks: str, **changes: object) -> WorkQueue:
    return WorkQueue.model_validate({"callbacks": callbacks, **changes})


def stored(data: bytes, **changes: object) -> StoredItem:
    return StoredItem("q", data, "", 7, 10 * DAY_MS + 5)._replace(**changes)


def read(**fields: object) -> WorkRequest:
    data = json.dumps({"id": "a", "body": BODY} | fields).encode()
    return read_item(stored(data), {"q": queue("https://hooks.example.com/in")})


@given(st.one_of(st.binary(), st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps)))
def test_whatever_comes_is_a_request_or_a_refusal_in_words(data: bytes | str) -> None:
    item = stored(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(ItemRefused, match=r"[a-z]") as refused:
        read_item(item, {"q": queue()})
    assert refused.value.key == ("q", "-", "sequence-7")


def test_an_item_that_is_published_twice_has_one_name_and_counts_on_the_day_of_its_publication() -> None:
    data = json.dumps({"id": "a", "body": BODY}).encode()
    first = read_item(stored(data), {"q": queue()})
    second = read_item(stored(data, sequence=8, stored_ms=10 * DAY_MS + 99), {"q": queue()})
    assert (first.key, first.line) == (second.key, second.line)
    assert created_ms_of(first.line.batch) == 10 * DAY_MS
    assert read(id="b").line.request_id != read(id="a").line.request_id != read(reply="r").line.request_id


def test_an_item_expires_with_its_queues_window_and_no_later_than_a_week() -> None:
    at_ms = 10 * DAY_MS + 5
    assert read().expires_ms == at_ms + DAY_MS
    assert read(expires_ms=3).expires_ms == 3
    assert read(expires_ms=2**60).expires_ms == at_ms + LONGEST_WINDOW_MS


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"id": ""}, "id"),
        ({"reply": "r" * 65}, "reply"),
        ({"endpoint": "/v1/files"}, "endpoint"),
        ({"callback": "https://other.example.com/in"}, "callback"),
        ({"body": {"messages": []}}, "body.model"),
        ({"body": {"model": "m", "stream": True}}, "body.stream"),
        ({"body": []}, "body"),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ItemRefused) as refused:
        read(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/in",
        "https://hooks.example.com/in/a?b=c",
        "https://hooks.example.com:443/in",
        "HTTPS://Hooks.Example.com/in/",
    ],
)
def test_a_callback_below_an_allowed_one_is_allowed(url: str) -> None:
    assert queue("https://hooks.example.com/in").allows_callback(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/in",
        "https://hooks.example.com/inside",
        "https://hooks.example.com",
        "https://hooks.example.com:8443/in",
        "https://hooks.example.com@evil.example.org/in",
        "https://user@hooks.example.com/in",
        "https://hooks.example.com.evil.example.org/in",
        "https://hooks.example.com/in/../admin",
        "https://hooks.example.com/in/%2e%2E/admin",
        "https://hooks.example.com/in/..%2fadmin",
        "https://hooks.example.com\\@evil.example.org/in",
        "https://evil.example.org\\.hooks.example.com/in",
        "https://hooks.example.com/in#x",
        "https://hooks.example.com/in\r\nhost: x",
        "//hooks.example.com/in",
        "file:///etc/passwd",
        "https://[::1/in",
        "https://hooks.example.com:99999/in",
        "",
    ],
)
def test_a_callback_elsewhere_or_ambiguous_is_refused(url: str) -> None:
    assert not queue("https://hooks.example.com/in").allows_callback(url)


@given(st.text())
def test_no_text_makes_the_check_fail(text: str) -> None:
    assert not queue("https://hooks.example.com/in").allows_callback(text)


@pytest.mark.parametrize("url", ["http://169.254.169.254/x", "https://10.0.0.1/x", "https://h.example.com/..", "x"])
def test_a_configuration_with_a_callback_to_a_private_network_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"private|link-local|write"):
        load({"queues": {"q": {"callbacks": [url]}}})


def test_a_queues_name_is_a_token() -> None:
    with pytest.raises(ConfigError, match="queues"):
        load({"queues": {"a b": {}}})
    assert Config.model_validate({"queues": {"a-b_1": {}}}).queues


def test_the_identity_of_a_queue_limits_its_models() -> None:
    assert identity_of("q", queue(tenant="t", models=["m"])) == {
        "tenant": "t", "subject": "queue/q", "source": "queue", "models": ["m"],
    }  # fmt: skip
    assert "models" not in identity_of("q", queue())
