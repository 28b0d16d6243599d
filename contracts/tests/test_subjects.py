"""Subjects follow one grammar, whatever names users give."""

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
    kv_key,
    parse,
    plain,
    stage_subject,
    subject,
    token,
)
from pointsman_contracts.worker import WorkerLoad, WorkerRegistration

NAMES = st.text(max_size=12) | st.sampled_from(["*", ">", "a.b", "a b", "", "b32-x", "pm", "llama-3.1-8b", "\ud800"])


@given(NAMES)
def test_any_text_survives_as_one_token(text: str) -> None:
    encoded = token(text)
    assert plain(encoded) == text
    assert encoded
    assert not set(encoded) & set(" .*>\t\r\n")


@given(NAMES, NAMES)
def test_two_names_never_share_a_token(first: str, second: str) -> None:
    assert (token(first) == token(second)) == (first == second)


@given(NAMES, NAMES)
def test_a_subject_can_be_taken_apart(pool: str, worker: str) -> None:
    if {pool, worker} & {ANY, REST}:
        return
    assert parse(subject(WorkerLoad, pool, worker)) == ("sig", "worker", "load", 1, (pool, worker))


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


@pytest.mark.parametrize(
    "text", ["", "pm.sig.worker.load", "xx.sig.worker.load.v1", "pm.sig.worker.load.1.a", "pm.evt.a.b.v0"]
)
def test_a_text_that_is_no_subject_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a subject"):
        parse(text)


def test_a_registration_lives_in_its_bucket() -> None:
    assert kv_key(WorkerRegistration, "llama", "w 1") == f"llama.{token('w 1')}"
    assert subject(WorkerRegistration, ANY, ANY) == "$KV.pm-workers.*.*"


def test_every_message_and_stage_has_a_subject_of_its_own() -> None:
    subjects = [subject(m, *m.address.route) for m in MESSAGES if m is not Journey]
    subjects += [stage_subject(name, *address.route) for name, address in STAGES.items() if name != "preprocessor"]
    assert len(set(subjects)) == len(subjects)
