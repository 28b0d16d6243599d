"""Base models and adapters are distinguished."""

import pytest

from pointsman_engines.models import ServedModels, UnreadableModels, served_models


@pytest.mark.parametrize(
    ("body", "served"),
    [
        (
            b'{"object":"list","data":[{"id":"llama","parent":null,"root":"meta/llama","max_model_len":8192},'
            b'{"id":"sql","parent":"llama","root":"/adapters/sql"},{"id":"llama"}]}',
            ServedModels(("llama",), ("sql",), 8192),
        ),
        (b'{"data":[{"id":"a","max_model_len":10},{"id":"b","max_model_len":5}]}', ServedModels(("a", "b"), (), 5)),
        (b'{"object":"list"}', ServedModels()),
        (
            b'{"data":[null,"x",{"id":5},{"id":"a","max_model_len":"8k","parent":7},{"id":"b","max_model_len":-1},'
            b'{"id":"c","max_model_len":0},{"max_model_len":9},{"id":"d","max_model_len":64}]}',
            ServedModels(("a", "b", "c", "d"), (), 64),
        ),
    ],
)
def test_models_and_adapters_are_distinguished(body: bytes, served: ServedModels) -> None:
    assert served_models(body) == served


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"<html>", b"\xff", b"null", b'{"data":null}', b'{"data":[{"name":"x"}]}', b'{"data":"m"}']
)
def test_any_other_answer_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableModels):
        served_models(body)
