"""A journey whose target is settled: the blocks and the body are that target's."""

from msgspec.structs import replace

from pointsman_contracts.journey import BlockChain, BodyEdit, Journey, RequestFacts, Target
from pointsman_contracts.message import Blob
from pointsman_core.settled_target import settled
from pointsman_testing import builders


def with_blocks(model: str) -> Journey:
    facts = RequestFacts(api="completions", blocks=Blob(bytes(range(16))))
    return builders.journey("profile-picker", model=model, request=facts, target=None)


def after(journey: Journey, to: Target, block_tokens: int | None) -> Journey:
    return journey.changed(**settled(journey, to, block_tokens))


def test_models_and_adapters_share_no_block() -> None:
    journey = with_blocks("m")
    targets = [
        Target(model="m", pool="a"),
        Target(model="n", pool="a"),
        Target(model="m", pool="a", lora="m"),
    ]
    blocks: list[bytes] = []
    for to in targets:
        facts = after(journey, to, 64).request
        blocks.append(facts.blocks)
    assert len({chain[:8] for chain in blocks}) == 3
    assert len({chain[8:] for chain in blocks}) == 3


def test_the_same_prompt_for_the_same_target_has_the_same_blocks_whatever_name_it_was_asked_by() -> None:
    to = Target(model="m", pool="a")
    assert after(with_blocks("m"), to, 64).request == after(with_blocks("alias"), to, 64).request


def test_the_body_names_the_model_as_its_server_does() -> None:
    to = Target(model="tuned", pool="a", lora="tuned")
    assert after(with_blocks("mine"), to, 64).body == (BodyEdit(field="model", value="tuned"),)
    assert after(with_blocks("tuned"), to, 64).body == ()


def test_the_target_gets_the_blocks_in_its_pools_size_and_none_that_were_never_hashed() -> None:
    chains = (BlockChain(block_tokens=16, blocks=Blob(bytes(range(32)))),)
    facts = RequestFacts(api="completions", block_tokens=64, blocks=Blob(bytes(range(8))), other_chains=chains)
    journey = builders.journey("profile-picker", model="auto", request=facts, target=None)
    to = Target(model="base", pool="a")

    def blocks(size: int | None) -> RequestFacts:
        request = after(journey, to, size).request
        assert request.other_chains == ()
        return request

    assert (blocks(64).block_tokens, len(blocks(64).blocks)) == (64, 8)
    assert (blocks(16).block_tokens, len(blocks(16).blocks)) == (16, 32)
    assert (blocks(32).block_tokens, blocks(32).blocks) == (32, b"")
    assert len(blocks(None).blocks) == 8


def test_the_edit_of_a_rewrite_stays_only_where_the_client_did_not_name_the_target() -> None:
    edit, to = BodyEdit(field="model", value="base"), Target(model="base", pool="a")
    journey = builders.journey("profile-picker", model="prod", rewritten="base", body=(edit,), target=None)
    assert after(journey, to, 64).body == (edit,)
    again = replace(journey, model="base", rewritten="other")
    assert after(again, to, 64).body == ()
