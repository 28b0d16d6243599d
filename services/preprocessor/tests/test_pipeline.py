"""Processors: their order, their edits, and the errors for a wrong configuration."""

import asyncio
from collections.abc import Awaitable
from typing import cast

import orjson
import pytest
from pydantic import JsonValue

from pointsman_apis.requests import parse
from pointsman_contracts.journey import HeaderEdit, Journey, StageReport
from pointsman_core.config import ConfigError, load
from pointsman_core.json_members import edit_fields
from pointsman_core.plugins import Key, PluginError
from pointsman_core.refusal import Refusal
from pointsman_core.settled_target import salt
from pointsman_plugins.plugin import Params
from pointsman_plugins.preprocessing import IDENTITY, Incoming, RequestProcessor
from pointsman_plugins.prompt import MOST_BLOCKS, chain, prompt_of
from pointsman_preprocessor.configuration import check
from pointsman_preprocessor.domain.pipeline import Pipeline, depart, describe, registry
from pointsman_preprocessor.domain.request_headers import read_headers
from pointsman_testing import builders

SEEN: Key[list[JsonValue]] = Key("seen", list[JsonValue])
FLAG: Key[str] = Key("flag", str)


class MarkParams(Params):
    mark: str = "mark"


class Mark(RequestProcessor[MarkParams]):
    """Notes that it ran."""

    type_name = "mark"
    produces = (SEEN,)

    def process(self, incoming: Incoming) -> None:
        incoming.write(SEEN, [*(incoming.read(SEEN) or []), self.params.mark])


class Slow(RequestProcessor):
    """Waits for an answer from outside."""

    type_name = "slow"
    produces = (SEEN,)

    def process(self, incoming: Incoming) -> Awaitable[None]:
        return self._wait(incoming)

    async def _wait(self, incoming: Incoming) -> None:
        await asyncio.sleep(0)
        incoming.write(SEEN, [*(incoming.read(SEEN) or []), "slow"])


class Refuse(RequestProcessor):
    """Ends every request."""

    type_name = "refuse"

    def process(self, incoming: Incoming) -> None:
        raise Refusal(403, "No.")


class Produce(RequestProcessor):
    type_name = "produce"
    produces = (FLAG,)

    def process(self, incoming: Incoming) -> None:
        incoming.write(FLAG, "up")


class Consume(RequestProcessor):
    type_name = "consume"
    consumes = (FLAG,)

    def process(self, incoming: Incoming) -> None:
        incoming.set_header("X-Flag", incoming.read(FLAG) or "")


TYPES = registry((Mark, Slow, Refuse, Produce, Consume))


def pipeline(*processors: object, **sections: object) -> Pipeline:
    return Pipeline(load({"preprocessing": list(processors), **sections}), TYPES)


def request(headers: dict[str, str] | None = None, **fields: JsonValue) -> Incoming:
    document: dict[str, JsonValue] = {"model": "m", "prompt": "word " * 200, **fields}
    envelope = builders.preprocess_request(path="/v1/completions", headers=headers or {})
    return Incoming(envelope, parse(envelope.path, orjson.dumps(document)), read_headers(envelope.headers))


@pytest.mark.requirement("S0-4", "S0-5")
def test_processors_run_for_every_request_in_the_configured_order() -> None:
    compiled = pipeline({"use": "mark", "name": "b", "mark": "2"}, {"use": "mark", "name": "a", "mark": "1"})
    for _ in range(2):
        incoming = request()
        assert compiled.run(incoming) is None
        assert incoming.attributes == {"seen": ["2", "1"]}


async def test_those_behind_one_that_waits_run_after_it() -> None:
    compiled = pipeline("mark", "slow", {"use": "mark", "name": "last", "mark": "last"})
    incoming = request()
    waiting = compiled.run(incoming)
    assert waiting is not None
    await waiting
    assert incoming.attributes == {"seen": ["mark", "slow", "last"]}


def test_nothing_runs_after_a_refusal() -> None:
    """S3-24."""
    incoming = request()
    with pytest.raises(Refusal):
        pipeline("refuse", "mark").run(incoming)
    assert incoming.attributes == {}


@pytest.mark.requirement("S0-8")
def test_no_processors_are_a_legal_list() -> None:
    assert pipeline().run(request()) is None


def test_an_attribute_that_is_consumed_before_it_is_produced_names_its_producer() -> None:
    with pytest.raises(
        PluginError, match="'consume' needs the attribute 'flag': 'produce' produces it, but runs later"
    ):
        pipeline("consume", "produce")
    with pytest.raises(PluginError, match="no configured plugin produces it"):
        pipeline("consume")


@pytest.mark.requirement("S0-35")
def test_an_unknown_processor_is_refused_where_it_stands() -> None:
    with pytest.raises(ConfigError, match=r"preprocessing\.0\.use: unknown request processor type 'rules'"):
        check(load({"preprocessing": [{"use": "rules"}]}))


def test_an_edit_is_seen_by_later_processors_and_reaches_the_journey() -> None:
    incoming = request({"accept": "*/*", "x-old": "1"})
    pipeline("produce", "consume").run(incoming)
    incoming.set_field("n", 2)
    incoming.remove_field("prompt")
    incoming.remove_header("x-old")
    assert incoming.header("x-flag") == "up"
    assert incoming.header("x-old") is None
    assert incoming.field("n") == 2
    journey = depart(incoming, describe(incoming, (64,)), StageReport(stage="preprocessor", instance="1"))
    assert journey.headers == (HeaderEdit(name="x-flag", value="up"), HeaderEdit(name="x-old"))
    edits = {edit.field: None if edit.remove else orjson.dumps(edit.value) for edit in journey.body}
    assert orjson.loads(edit_fields(bytes(incoming.body.raw), edits)) == {"model": "m", "n": 2}


def test_the_journey_is_read_as_it_was_made() -> None:
    incoming = request({"accept": "*/*"})
    journey = depart(incoming, describe(incoming, (64,)), StageReport(stage="preprocessor", instance="1"))
    assert Journey.decode(journey.encode()) == journey


def test_a_change_to_the_same_value_is_no_edit() -> None:
    incoming = request({"accept": "*/*"}, n=1)
    incoming.set_header("Accept", "*/*")
    incoming.set_field("n", 1)
    incoming.remove_header("x-absent")
    incoming.remove_field("absent")
    assert not incoming.header_edits
    assert not incoming.body_edits


def test_a_field_that_is_absent_can_be_set_to_null() -> None:
    incoming = request()
    incoming.set_field("stop", None)
    assert incoming.body_edits["stop"].value is None


def test_the_blocks_have_the_size_of_the_pool_that_serves_the_model() -> None:
    pools = {"a": {"models": ["small"], "block_tokens": 16}, "b": {"models": ["large"], "block_tokens": 128}}
    compiled = pipeline(pools=pools, models={"alias": {"pool": "b", "served_as": "large"}})
    assert [compiled.block_tokens(name) for name in ("small", "large", "alias", "auto")] == [
        (16,),
        (128,),
        (128,),
        (16, 128),
    ]
    facts = describe(request(), (16,))
    assert (facts.block_tokens, len(facts.blocks)) == (16, 8 * (1000 // 64))


def test_tenants_and_cache_salts_share_no_block() -> None:
    incoming = request()
    plain = describe(incoming, (16,)).blocks
    incoming.write(IDENTITY, {"tenant": "acme"})
    chains = {plain, describe(incoming, (16,)).blocks, describe(request(cache_salt="pepper"), (16,)).blocks}
    assert len(chains) == 3
    assert len({blocks[:8] for blocks in chains}) == 3
    stream = prompt_of(incoming.body).stream
    assert plain == chain(stream, 64, salt("", "", "text"))


def test_a_tenant_is_the_flow_that_a_request_shares_unless_a_proxy_names_one() -> None:
    incoming = request({"x-pointsman-fairness-id": "team"})
    incoming.write(IDENTITY, {"tenant": "acme"})
    assert describe(incoming, (64,)).fairness_id == "team"
    incoming = request()
    incoming.write(IDENTITY, {"tenant": "acme"})
    assert describe(incoming, (64,)).fairness_id == "acme"
    assert describe(request(), (64,)).fairness_id == ""


def test_the_longest_prompt_still_fits_a_journey() -> None:
    headers = {f"x-{number}": "v" * 900 for number in range(40)}
    fields: dict[str, JsonValue] = {f"field{number}": "v" * 128 for number in range(200)}
    incoming = request(headers, **(fields | {"prompt": "x" * 2_000_000}))
    journey = depart(incoming, describe(incoming, (16,)), StageReport(stage="preprocessor", instance="1"))
    assert len(journey.request.blocks) == 4096 * 8
    assert len(journey.encode()) <= 65536 - 4096


def test_while_any_pool_may_be_chosen_the_prompt_is_hashed_in_the_block_size_of_each() -> None:
    pools = {"a": {"models": ["m"], "block_tokens": 16}, "b": {"models": ["n"], "block_tokens": 32}, "c": {}}
    compiled = pipeline(pools=pools)
    assert compiled.block_tokens("auto") == (16, 32, 64)
    assert compiled.block_tokens("n") == (32,)
    assert pipeline(pools=pools, selectors={"s": {}}).block_tokens("n") == (32, 16, 64)
    assert pipeline().block_tokens("auto") == (64,)
    facts = describe(request(), (16, 32))
    for size in (16, 32):
        alone = describe(request(), (size,))
        assert facts.in_blocks_of(size).blocks == alone.blocks
        assert alone.in_blocks_of(size) is alone
    assert facts.in_blocks_of(64).blocks == b""


def test_a_long_prompt_in_several_block_sizes_fits_the_journey() -> None:
    prompt = list(range(100_000))
    facts = describe(request(prompt=cast("JsonValue", prompt)), (1, 2, 4))
    chains = [facts.blocks, *(chain.blocks for chain in facts.other_chains)]
    assert [len(hashes) // 8 for hashes in chains] == [MOST_BLOCKS // 3] * 3
    assert facts.blocks == describe(request(prompt=cast("JsonValue", prompt)), (1,)).blocks[: MOST_BLOCKS // 3 * 8]


class Undeclared(RequestProcessor):
    """Writes an attribute that it doesn't declare."""

    type_name = "undeclared"

    def process(self, incoming: Incoming) -> None:
        incoming.write(FLAG, "x")


@pytest.mark.parametrize("on_error", ["deny", "allow"])
def test_an_attribute_that_no_processor_declares_is_its_writers_failure(on_error: str) -> None:
    config = load({"preprocessing": [{"use": "undeclared", "on_error": on_error}]})
    pipeline = Pipeline(config, registry((Undeclared,)))
    incoming = request()
    if on_error == "deny":
        with pytest.raises(PluginError, match="'flag' isn't declared; add its key to `produces`"):
            pipeline.run(incoming)
    else:
        assert pipeline.run(incoming) is None
        assert (incoming.attributes, [failure.processor for failure in incoming.failures]) == ({}, ["undeclared"])


def test_a_header_is_found_whatever_the_case_of_its_name() -> None:
    incoming = request({"x-foo": "1"})
    assert incoming.header("X-Foo") == "1"
    incoming.set_header("X-FOO", "2")
    assert (incoming.header("x-foo"), incoming.header("X-Foo")) == ("2", "2")
    incoming.remove_header("X-foo")
    assert incoming.header("X-Foo") is None
