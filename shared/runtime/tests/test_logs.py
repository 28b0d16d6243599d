"""Logs: one object a line, and no text that a client could have sent."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from pointsman_runtime.bus.errors import PayloadTooLarge
from pointsman_runtime.telling import logs
from pointsman_runtime.telling.logs import LONGEST_TEXT, Log
from pointsman_runtime.telling.missing import Missing


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] - autouse
    root, ours = logging.getLogger(), logging.getLogger("pointsman")
    kept = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], root.level, ours.level = kept


def configured(form: logs.Form = "json", level: str = "info") -> io.StringIO:
    to = io.StringIO()
    logs.configure(form, level, "scheduler", "host-1", to)
    return to


def lines(to: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in to.getvalue().splitlines()]


def test_a_line_has_time_service_and_event() -> None:
    to = configured()
    Log("bus").info("connected", server="nats://127.0.0.1:4222", tries=3)
    (line,) = lines(to)
    at = str(line.pop("at"))
    assert at.endswith("Z")
    assert line == {
        "level": "info", "service": "scheduler", "instance": "host-1", "part": "bus",
        "event": "connected", "server": "nats://127.0.0.1:4222", "tries": 3,
    }  # fmt: skip


@given(st.text(max_size=700))
def test_any_text_stays_within_its_line(text: str) -> None:
    for form in ("json", "human"):
        to = configured(form)
        Log("bus").info("event", field=text)
        written = to.getvalue()
        assert written.endswith("\n")
        assert written.count("\n") == 1
        assert len(written) < 8 * LONGEST_TEXT


class Body(BaseModel):
    prompt: int


def errors_that_quote() -> list[Exception]:
    found: list[Exception] = [ValueError("canary"), KeyError("canary"), RuntimeError("it was canary")]
    try:
        Body.model_validate_json('{"prompt": "canary"}')
    except ValidationError as error:
        found.append(error)
    return found


@pytest.mark.parametrize("form", ["json", "human"])
def test_an_exceptions_own_text_is_withheld(form: logs.Form) -> None:
    to = configured(form)
    for error in errors_that_quote():
        Log("stage").error("handler_failed", error, request_id="r-1")
        logging.getLogger("some.library").error("it broke", exc_info=error)
    assert "canary" not in to.getvalue()
    assert to.getvalue().count("r-1") == 4
    assert "ValidationError" in to.getvalue()


def test_an_error_of_ours_and_of_the_system_is_logged_in_full() -> None:
    to = configured()
    Log("bus").error("unsent", PayloadTooLarge(8, 9))
    Log("bus").error("cannot_start", OSError(98, "Address already in use"))
    assert [line["detail"] for line in lines(to)] == [
        "message of 9 bytes; the server takes 8",
        "[Errno 98] Address already in use",
    ]


def test_a_missing_dependency_is_logged_once_until_it_is_back() -> None:
    to = configured()
    missing = Missing(Log("cache"))
    for problem in ("no route", "no route", TimeoutError()):
        assert missing.note_missing("store", problem, request_id="r-1") == "store unavailable"
    assert not missing.is_complete
    for _ in range(2):
        missing.note_recovery("store", "embeddings")
    assert missing.is_complete
    missing.note_missing("store", "no route")
    assert [(line["event"], line["missing"]) for line in lines(to) if "missing" in line] == [("degraded", "store")] * 3
    assert [line["what"] for line in lines(to) if line["event"] == "available_again"] == ["store"]


def test_an_error_names_its_place() -> None:
    to = configured()
    try:
        int("canary")
    except ValueError as error:
        Log("stage").error("handler_failed", error)
    assert str(lines(to)[0]["at_code"]).startswith("test_an_error_names_its_place test_logs.py:")


def test_the_level_hides_what_is_below() -> None:
    to = configured(level="warning")
    Log("bus").info("connected")
    Log("bus").warning("degraded")
    assert [line["event"] for line in lines(to)] == ["degraded"]


def test_a_person_reads_one_line_of_pairs() -> None:
    to = configured("human")
    Log("bus").warning("bus_disconnected", reason="connection refused", tries=2)
    text = to.getvalue()
    assert 'scheduler: bus_disconnected reason="connection refused" tries=2' in text
