"""Subjects follow one grammar, whatever names users give."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_contracts.catalogue import MESSAGES
from pointsman_contracts.journey import Journey
from pointsman_contracts.services import STAGES
from pointsman_contracts.subjects import (
    ANY,
    REST,
    direct_subject,
    former_token,
    kv_key,
    plain,
    stage_subject,
    subject,
    token,
)
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration

NAMES = st.text(max_size=12) | st.sampled_from(
    ["*", ">", "a.b", "a b", "", "b32-x", "b32-", "=", "=2E", "a/b", "pm", "llama-3.1-8b", "\ud800"]
)


@given(NAMES)
def test_any_text_survives_as_one_token(text: str) -> None:
    encoded = token(text)
    assert plain(encoded) == text
    assert re.fullmatch(r"[A-Za-z0-9_/=-]+", encoded)  # what clients of NATS take as a bucket's key


@given(NAMES, NAMES)
def test_two_names_never_share_a_token(first: str, second: str) -> None:
    assert (token(first) == token(second)) == (first == second)


@given(NAMES)
def test_a_token_of_the_former_form_is_still_read(text: str) -> None:
    assert plain(former_token(text)) == text


@given(NAMES, NAMES)
def test_no_token_is_another_names_former_one(now: str, before: str) -> None:
    assert token(now) != former_token(before) or now == before


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        ("llama-3.1-8b", "llama-3=2E1-8b"),
        ("meta-llama/Llama-3", "meta-llama/Llama-3"),
        ("qwen 2:7b", "qwen=202=3A7b"),
        ("", "="),
        ("b32-x", "=6232-x"),
    ],
)
def test_a_token_can_be_read(text: str, readable: str) -> None:
    assert token(text) == readable


@given(st.text("=0123456789ABCDEFabcxyz-.é", max_size=12) | st.text("abc234567", max_size=8).map("b32-{}".format))
def test_a_token_that_means_a_text_is_one_of_its_two_and_any_other_is_refused(written: str) -> None:
    try:
        text = plain(written)
    except ValueError:
        return
    assert "=" not in written or written == token(text)


@pytest.mark.parametrize("written", ["a=41", "a=2e", "a=2", "a=", "a==", "=C3", "b32-1"])
def test_a_token_that_stands_for_nothing_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="is not an encoded subject token"):
        plain(written)


@given(NAMES, NAMES)
def test_a_subject_can_be_taken_apart(pool: str, worker: str) -> None:
    if {pool, worker} & {ANY, REST}:
        return
    *stem, pool_token, worker_token = subject(WorkerLoad, pool, worker).split(".")
    assert (".".join(stem), plain(pool_token), plain(worker_token)) == ("pm.sig.worker.load.v1", pool, worker)


def test_names_from_users_match_no_wildcard() -> None:
    assert stage_subject("guard.>") == f"pm.rpc.request.{token('guard.>')}.v1"
    assert direct_subject("scheduler", "a.b", "pool") == f"pm.rpc.request.schedule.v1.pool.{token('a.b')}"


def test_wildcards_are_for_subscriptions() -> None:
    assert subject(WorkerLoad, "p", ANY) == "pm.sig.worker.load.v1.p.*"
    assert subject(WorkerLoad, REST) == "pm.sig.worker.load.v1.>"
    assert stage_subject("scheduler", ANY) == "pm.rpc.request.schedule.v1.*"


@pytest.mark.parametrize("route", [(), ("p",), ("p", "w", "x"), ("p", "w", REST)])
def test_a_route_of_the_wrong_length_is_refused(route: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes pool, worker; got"):
        subject(WorkerLoad, *route)


def test_a_registration_lives_in_its_bucket() -> None:
    assert kv_key(WorkerRegistration, "llama", "w 1") == f"llama.{token('w 1')}"
    assert subject(WorkerRegistration, ANY, ANY) == "$KV.pm-workers.*.*"


def test_every_message_and_stage_has_a_subject_of_its_own() -> None:
    subjects = [subject(m, *m.address.route) for m in MESSAGES if m is not Journey]
    subjects += [stage_subject(name, *address.route) for name, address in STAGES.items() if name != "preprocessor"]
    assert len(set(subjects)) == len(subjects)
