"""The demo's traffic, without a gateway."""

from typing import Any, cast

from pointsman_cli.demo.workload import Request, crowd, instructions


def _first(**options: Any) -> list[Request]:
    return [user.make_request("") for user in crowd(["llama"], ["sql"], size=8, **options)]


def test_the_crowd_mixes_every_habit() -> None:
    kinds = [request.kind for request in _first(auto=True)]
    assert {kind: kinds.count(kind) for kind in kinds} == {"chat": 4, "completion": 2, "model: auto": 1, "priority": 1}


def test_without_a_selector_no_client_asks_for_auto() -> None:
    assert {request.body["model"] for request in _first(auto=False)} == {"llama", "sql"}


def test_every_conversation_of_a_team_begins_with_the_same_long_instructions() -> None:
    prompts = [
        cast("list[dict[str, str]]", request.body["messages"])[0]["content"]
        for request in _first(auto=True)
        if "messages" in request.body
    ]
    assert set(prompts) == {instructions("parcel support"), instructions("billing support")}
    assert all(len(prompt.encode()) > 3000 for prompt in prompts)


def test_a_conversation_holds_what_was_said_and_begins_anew_after_some_turns() -> None:
    [user] = crowd(["llama"], [], auto=False, size=1)
    lengths: list[int] = []
    text = ""
    for turn in range(7):
        messages = cast("list[dict[str, str]]", user.make_request(text).body["messages"])
        lengths.append(len(messages))
        text = f"answer {turn}"
        if turn == 1:
            assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
            assert messages[2]["content"] == "answer 0"
    assert lengths == [2, 4, 6, 8, 10, 2, 4]


def test_the_same_seed_says_the_same_things() -> None:
    assert [request.body for request in _first(auto=True)] == [request.body for request in _first(auto=True)]
    assert [request.body for request in _first(auto=True)] != [request.body for request in _first(auto=True, seed=8)]
