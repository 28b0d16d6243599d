"""The members of a body that an engine reads."""

import json
from collections.abc import Callable

import pytest

from pointsman_simulator.api import Generation, parse_chat, parse_completion, parse_messages, parse_response
from pointsman_simulator.vocabulary import Vocabulary

Parser = Callable[[bytes, Vocabulary], Generation]
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("parser", "body", "nulls"),
    [
        (parse_chat, {"messages": MESSAGES}, ("stream", "n", "stream_options", "max_tokens", "temperature", "top_p")),
        (parse_completion, {"prompt": "x"}, ("stream", "n", "stream_options", "max_tokens", "seed")),
        (parse_response, {"input": "x"}, ("stream", "max_output_tokens", "tools")),
        (parse_messages, {"messages": MESSAGES, "max_tokens": 4}, ("stream", "system", "tools")),
    ],
)
def test_a_field_that_is_null_counts_as_absent(parser: Parser, body: dict[str, object], nulls: tuple[str, ...]) -> None:
    def parsed(**more: object) -> tuple[object, ...]:
        read = parser(json.dumps({"model": "m", **body, **more}).encode(), Vocabulary())
        return read.stream, read.choices_per_prompt, read.include_usage, read.max_tokens, read.seed, read.call

    assert parsed(**dict.fromkeys(nulls)) == parsed()


def test_usage_is_not_included_in_a_stream_that_says_null() -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": None}}
    assert not parse_chat(json.dumps(body).encode(), Vocabulary()).include_usage
