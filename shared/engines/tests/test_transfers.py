"""The bodies of the two legs, by kind of engine."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_engines.transfers import (
    PAUSE_S,
    TRANSFERS,
    Edits,
    Leg,
    NothingCarried,
    Pauses,
    begin,
    decode_body,
    prefill_body,
    share,
    sized,
    unsuited,
)

PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "e",
    "remote_request_id": "chatcmpl-1",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
}
LEG = Leg("chat.completions", "10.0.0.7", 8998, 5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def changed(body: dict[str, Any], edits: Edits) -> dict[str, Any]:
    after = body | {edit.field: edit.value for edit in edits}
    return {name: value for name, value in after.items() if not any(e.remove and e.field == name for e in edits)}


@pytest.mark.parametrize(
    ("api", "limit"),
    [
        ("chat.completions", "max_tokens"),
        ("completions", "max_tokens"),
        ("messages", "max_tokens"),
        ("responses", "max_output_tokens"),
    ],
)
def test_vllm_is_asked_for_one_token_that_nothing_forbids(api: str, limit: str) -> None:
    leg = begin("vllm", api, "10.0.0.7", None)
    assert leg is not None
    body = {limit: 100, "max_completion_tokens": 50, "min_tokens": 20, "stream": True, "stop": ["a"], "seed": 3}
    after = changed({**body, "stream_options": {"include_usage": True}}, prefill_body("vllm", leg))
    assert (after[limit], after["stream"], after["seed"]) == (1, False, 3)
    assert after["kv_transfer_params"]["do_remote_decode"] is True
    assert after.keys().isdisjoint({"min_tokens", "max_completion_tokens", "stream_options", "stop"})
    # A stored one would be listed beside the client's own.
    assert after.get("store") is (False if api == "responses" else None)


def test_vllms_parameters_reach_the_other_engine_as_they_are() -> None:
    [edit] = decode_body("vllm", LEG, json.dumps({"kv_transfer_params": {**PARAMS, "new": 1}}).encode())
    assert (edit.field, edit.value) == ("kv_transfer_params", {**PARAMS, "new": 1})


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
@given(answer=JSON | st.fixed_dictionaries({"kv_transfer_params": JSON, "choices": JSON}))
def test_an_answer_that_carries_nothing_is_never_taken_for_one(engine: str, answer: object) -> None:
    with pytest.raises(NothingCarried):
        decode_body(engine, LEG, json.dumps(answer).encode())


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'{"kv_transfer_params":{"do_remote_prefill":true}}'])
def test_an_answer_that_is_none_says_so(answer: bytes) -> None:
    with pytest.raises(NothingCarried):
        decode_body("vllm", LEG, answer)


def test_engines_that_meet_get_the_same_room_and_no_two_requests_do() -> None:
    legs = [begin("sglang", "completions", "h", 9000) for _ in range(50)]
    assert len({leg.number for leg in legs if leg is not None}) == 50
    leg = legs[0]
    assert leg is not None
    assert prefill_body("sglang", leg) == decode_body("sglang", leg)
    assert {edit.field: edit.value for edit in prefill_body("sglang", leg)} == {
        "bootstrap_host": "h",
        "bootstrap_port": 9000,
        "bootstrap_room": leg.number,
    }


@pytest.mark.parametrize(
    ("api", "body", "rooms"),
    [
        ("chat.completions", {"n": 3}, 3),
        ("chat.completions", {"n": 1}, None),
        ("completions", {"prompt": ["a", "b"]}, 2),
        ("completions", {"prompt": ["a"], "n": 2}, 1),
        ("completions", {"prompt": [1, 2, 3]}, None),
        ("completions", {"prompt": "a", "n": 2}, None),
    ],
)
def test_sglang_gets_a_room_for_each_answer_of_a_chat_and_each_prompt_of_a_list(
    api: str, body: dict[str, Any], rooms: int | None
) -> None:
    leg = begin("sglang", api, "h", 9000)
    assert leg is not None
    values = {edit.field: edit.value for edit in prefill_body("sglang", sized(leg, body))}
    if rooms is None:
        assert values == {"bootstrap_host": "h", "bootstrap_port": 9000, "bootstrap_room": leg.number}
    else:
        assert values["bootstrap_host"] == ["h"] * rooms
        assert len(set(cast("list[int]", values["bootstrap_room"]))) == rooms


def test_a_first_token_that_ends_the_answer_leaves_it_to_one_engine() -> None:
    answer = {"choices": [{"finish_reason": "stop", "disaggregated_params": {"ctx_request_id": 1}}]}
    with pytest.raises(NothingCarried, match="ended the answer"):
        decode_body("trtllm", LEG, json.dumps(answer).encode())


def test_the_id_that_a_context_server_answers_with_counts() -> None:
    params = {"ctx_request_id": 1, "disagg_request_id": 77}
    answer = {"choices": [{"finish_reason": "not_finished", "disaggregated_params": params}]}
    [edit] = decode_body("trtllm", LEG, json.dumps(answer).encode())
    assert edit.value == {"ctx_request_id": 1, "disagg_request_id": 77, "request_type": "generation_only"}


def test_members_that_a_release_does_not_know_are_not_sent_to_it() -> None:
    choice = {"finish_reason": "length", "disaggregated_params": {"ctx_request_id": 1, "first_gen_tokens": [7]}}
    answer = json.dumps({"choices": [choice], "usage": {}, "prompt_token_ids": [1, 2]}).encode()
    edits = {edit.field: edit.value for edit in decode_body("trtllm", LEG._replace(api="completions"), answer)}
    assert edits["prompt"] == [1, 2]
    assert "ctx_usage" not in str(edits["disaggregated_params"])


@pytest.mark.parametrize(
    ("engine", "body", "shared"),
    [
        ("vllm", {"prompt": "a"}, True),
        ("vllm", {"prompt": ["a"]}, True),
        ("trtllm", {"prompt": ["a"]}, False),
        ("sglang", {"prompt": ["a", "b"], "echo": True}, True),
        ("vllm", {"prompt": [1, 2, 3]}, True),
        ("vllm", {"prompt": [[1, 2], [3]]}, False),
        ("vllm", {"n": 1, "best_of": 1, "logprobs": True}, True),
        ("vllm", {"n": 2}, False),
        ("vllm", {"use_beam_search": True}, False),
        ("vllm", {"prompt_logprobs": 0}, False),
        ("vllm", {"prompt": {"id": "stored"}}, False),
        ("vllm", {"background": True}, False),
    ],
)
def test_requests_that_two_engines_can_share(engine: str, body: dict[str, Any], shared: bool) -> None:
    assert (unsuited(engine, body) == "") is shared


@given(body=st.dictionaries(st.sampled_from(["n", "prompt", "echo", "best_of", "background"]), JSON))
def test_no_body_is_too_strange_to_be_judged(body: dict[str, Any]) -> None:
    for engine in TRANSFERS:
        assert isinstance(unsuited(engine, body), str)


def test_an_unknown_engine_or_api_has_no_leg() -> None:
    assert begin("llamacpp", "completions", "h", None) is None
    assert begin("vllm", "embeddings", "h", None) is None
    assert begin("sglang", "responses", "h", None) is None


def test_two_engines_that_failed_are_left_alone_for_a_while() -> None:
    pauses = Pauses()
    assert not pauses.is_paused("p", "d", 100.0)
    assert pauses.begin_pause("p", "d", 100.0)
    assert pauses.is_paused("p", "d", 100.0 + PAUSE_S - 0.1)
    assert not pauses.is_paused("p", "other", 100.0)
    assert not pauses.begin_pause("p", "d", 100.0 + PAUSE_S + 0.1)
    assert pauses.begin_pause("p", "", 100.0)
    assert pauses.is_paused("p", "other", 100.0)


@pytest.mark.parametrize("count", [1, 3])
def test_both_engines_of_sglang_derive_the_rank_that_was_chosen_from_a_requests_number(count: int) -> None:
    for rank in range(4):
        shared = share("sglang", "chat.completions", "10.0.0.1", None, rank, 4)
        assert shared is not None
        assert shared.read(json.dumps({"messages": [], "n": count}).encode()) == ""
        asked: dict[str, Any] = {edit.field: edit.value for edit in shared.edit_prefill()}
        carried: dict[str, Any] = {edit.field: edit.value for edit in shared.edit_decode()}
        rooms = carried["bootstrap_room"]
        assert {room % 4 for room in ([rooms] if count == 1 else rooms)} == {rank}
        assert asked["bootstrap_room"] == rooms
        assert carried["disagg_prefill_dp_rank"] == rank
        assert "disagg_prefill_dp_rank" not in asked
