"""Processors in force, in shadow and off; what becomes of a request when one fails; what the trail says."""

import asyncio
from collections.abc import Awaitable

import orjson
import pytest
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.journey import StageReport
from pointsman_core.config import ConfigError, load
from pointsman_core.plugins import Key
from pointsman_core.refusal import Refusal
from pointsman_plugins.preprocessing import IDENTITY, Incoming, RequestProcessor, Unavailable
from pointsman_preprocessor.configuration import check
from pointsman_preprocessor.domain.pipeline import Pipeline, depart, describe, registry
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_preprocessor.handlers import bounded
from pointsman_preprocessor.plugins import BUILTIN
from pointsman_testing import builders

SEEN: Key[list[JsonValue]] = Key("seen", list[JsonValue])


class Mark(RequestProcessor):
    """Changes whatever can be changed."""

    type_name = "mark"
    produces = (SEEN,)

    def process(self, incoming: Incoming) -> None:
        incoming.write(SEEN, [*(incoming.read(SEEN) or []), self.name])
        incoming.set_header("x-seen", self.name)
        incoming.set_field("seen", self.name)
        incoming.set_answer_header("x-seen", self.name)


class Refuse(RequestProcessor):
    type_name = "refuse"

    def process(self, incoming: Incoming) -> None:
        incoming.set_header("x-refused", "yes")
        raise Refusal(429, "Too much.", code="too_much")


class Broken(RequestProcessor):
    """Fails after it changed something; knows a lesser way."""

    type_name = "broken"

    def process(self, incoming: Incoming) -> None:
        incoming.set_header("x-half", "done")
        raise Unavailable("the ledger is away")

    def degrade(self, incoming: Incoming) -> bool:
        incoming.say("a share of the limit")
        incoming.set_header("x-lesser", "yes")
        return True


class Crash(RequestProcessor):
    type_name = "crash"

    def process(self, incoming: Incoming) -> None:
        raise KeyError("canary-5521")


class Hang(RequestProcessor):
    type_name = "hang"

    def process(self, incoming: Incoming) -> Awaitable[None]:
        return self._hang()

    async def _hang(self) -> None:
        await asyncio.Event().wait()


class Talk(RequestProcessor):
    type_name = "talk"

    def process(self, incoming: Incoming) -> None:
        incoming.say(f"seen {incoming.read(SEEN)}")


TYPES = registry((*BUILTIN, Mark, Refuse, Broken, Crash, Hang, Talk))


def request(**fields: JsonValue) -> Incoming:
    envelope = builders.preprocess_request(path="/v1/completions")
    body = parse(envelope.path, orjson.dumps({"model": "m", "prompt": "hi", **fields}))
    return Incoming(envelope, body, read_headers(envelope.headers))


async def run(*entries: object) -> Incoming:
    incoming = request()
    waiting = Pipeline(load({"preprocessing": list(entries)}), TYPES, bound=bounded).run(incoming)
    if waiting is not None:
        await waiting
    return incoming


def told(incoming: Incoming) -> list[tuple[str, str, str | None]]:
    return [(verdict.processor, verdict.outcome, verdict.note) for verdict in incoming.verdicts]


@pytest.mark.requirement("S3-3")
async def test_a_processor_that_is_off_does_not_run_and_a_silent_one_leaves_no_trace() -> None:
    incoming = await run({"use": "refuse", "mode": "off"}, "mark")
    assert incoming.header("x-seen") == "mark"
    assert told(incoming) == []


@pytest.mark.requirement("S3-3")
async def test_with_everything_off_a_request_goes_through_as_it_came() -> None:
    incoming = await run(*({"use": use, "mode": "off"} for use in ("mark", "refuse", "broken", "crash")))
    journey = depart(incoming, describe(incoming, (64,)), StageReport(stage="preprocessor", instance="i"))
    assert (journey.headers, journey.body, journey.answer_headers) == ((), (), ())
    assert (journey.request.attributes, journey.level, len(journey.trail)) == ({}, "full", 1)


@pytest.mark.requirement("S3-3")
async def test_a_change_in_shadow_is_reported_and_undone() -> None:
    incoming = await run({"use": "mark", "mode": "shadow"}, {"use": "refuse", "mode": "shadow"}, "talk")
    assert (incoming.header_edits, incoming.body_edits, incoming.answer_headers) == ({}, {}, {})
    assert told(incoming) == [
        ("mark", "shadow_passed", None),
        ("refuse", "shadow_rejected", "429 too_much"),
        ("talk", "passed", "seen None"),
    ]


async def test_a_chain_in_shadow_sees_what_its_own_members_found_out() -> None:
    incoming = await run({"use": "mark", "mode": "shadow"}, {"use": "talk", "mode": "shadow"})
    assert told(incoming)[1] == ("talk", "shadow_passed", "seen ['mark']")


@pytest.mark.parametrize(
    ("on_error", "header", "outcome", "note"),
    [
        ("allow", None, "skipped", "failed: the ledger is away"),
        ("degrade", "yes", "degraded", "failed: the ledger is away; a share of the limit"),
    ],
)
async def test_a_failure_is_undone_and_the_decision_says_so(
    on_error: str, header: str | None, outcome: str, note: str
) -> None:
    incoming = await run({"use": "broken", "on_error": on_error}, "mark")
    assert (incoming.header("x-half"), incoming.header("x-lesser")) == (None, header)
    assert told(incoming) == [("broken", outcome, note)]
    journey = depart(incoming, describe(incoming, (64,)), StageReport(stage="preprocessor", instance="i"))
    assert (journey.level, journey.reasons) == ("degraded", ("broken failed: the ledger is away",))
    assert [report.stage for report in journey.trail] == ["preprocessor/broken", "preprocessor"]


async def test_a_processor_that_may_not_fail_ends_the_request_with_503_that_names_it() -> None:
    with pytest.raises(Refusal) as caught:
        await run("broken")
    assert (caught.value.status, caught.value.code) == (503, "policy_unavailable")
    assert caught.value.message.startswith("broken ")


async def test_a_processor_that_crashes_may_be_skipped_and_its_words_are_not_shown() -> None:
    with pytest.raises(KeyError):
        await run("crash")
    incoming = await run({"use": "crash", "on_error": "allow"})
    assert told(incoming) == [("crash", "skipped", "failed")]


async def test_a_timeout_is_a_failure() -> None:
    with pytest.raises(Refusal) as caught:
        await run({"use": "hang", "timeout": "10ms"})
    assert (caught.value.status, caught.value.code) == (504, "stage_timeout")
    incoming = await run({"use": "hang", "timeout": "10ms", "on_error": "allow"}, "mark")
    assert told(incoming) == [("hang", "skipped", "was too slow")]
    assert incoming.header("x-seen") == "mark"


KEY = {"sha256": "0" * 64, "id": "k", "tenant": "t"}
API_KEYS = {"use": "api-key-auth", "keys": [KEY]}


@pytest.mark.requirement("S3-2", "S3-8", "S3-9")
@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (
            ["tenant-salt", API_KEYS],
            "preprocessing.0: 'tenant-salt' reads the identity, which 'api-key-auth' finds later",
        ),
        (
            [API_KEYS, "tenant-salt", "anonymous"],
            "preprocessing.1: 'tenant-salt' reads the identity, which 'anonymous'",
        ),
        (["tenant-salt"], "which no enforced processor finds; put e.g. `api-key-auth` or `jwt-auth` before it"),
        (
            [API_KEYS | {"mode": "off"}, "tenant-salt"],
            "which no enforced processor finds; 'api-key-auth' is off",
        ),
        (
            [API_KEYS | {"mode": "shadow"}, "tenant-salt"],
            "which no enforced processor finds; 'api-key-auth' is in shadow",
        ),
        (
            [API_KEYS | {"on_error": "allow"}],
            "preprocessing.0.on_error: 'api-key-auth' authenticates: `on_error: allow`",
        ),
        (
            [API_KEYS | {"keys": [KEY, KEY]}],
            "the key at 1 has the hash of one before it",
        ),
    ],
)
def test_an_order_that_cannot_work_names_the_misplaced_processor_and_why(entries: list[object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(load({"preprocessing": entries}))
    assert words in str(caught.value)


def test_authentication_cannot_be_skipped_while_the_bus_is_gone() -> None:
    config = load({"preprocessing": [API_KEYS], "edge": {"static_skips": ["api-key-auth"]}})
    with pytest.raises(ConfigError, match="every sender would be admitted while the bus is gone"):
        check(config)


def test_processors_in_shadow_may_go_by_an_identity_in_shadow() -> None:
    check(load({"preprocessing": [API_KEYS | {"mode": "shadow"}, {"use": "tenant-salt", "mode": "shadow"}]}))


async def test_authentication_in_shadow_refuses_no_client_and_reports_which_ones_it_would() -> None:
    incoming = await run(API_KEYS | {"mode": "shadow"})
    assert told(incoming) == [
        ("api-key-auth", "shadow_passed", None),
        ("authentication", "shadow_rejected", "401 missing_api_key"),
    ]
    assert incoming.read(IDENTITY) is None
