"""The scorer that compares a prompt with the described strengths of models."""

from typing import Final

import pytest

from pointsman_contracts.journey import Journey, RequestFacts
from pointsman_contracts.message import read_fields
from pointsman_core.config import ConfigError, load
from pointsman_core.lexical import LEXICAL, PROMPT_VECTOR, encode, vector
from pointsman_model_selector.configuration import check, plugins
from pointsman_model_selector.domain.selector import Selected, compile_selectors
from pointsman_plugins.selecting import ModelQuestion, ModelStates
from pointsman_testing import builders

STRENGTHS: Final = {
    "coder": "programming, Python, debugging, code review",
    "writer": "creative writing, stories, poems, translation",
    "plain": "",
}


def config(scorers: list[object], **strengths: str) -> dict[str, object]:
    described = strengths or STRENGTHS
    return {
        "pools": {"p": {"models": list(described)}},
        "models": {name: {"pool": "p", "strengths": text} for name, text in described.items()},
        "selectors": {"s": {"scorers": scorers}},
    }


def asking(text: str | None) -> Journey:
    produced = {} if text is None else {PROMPT_VECTOR.name: {"kind": LEXICAL, "values": encode(vector(text))}}
    facts = read_fields(RequestFacts, {"api": "chat.completions", "attributes": produced})
    return builders.journey("model-selector", model="auto", request=facts)


def select(text: str | None, scorers: list[object] | None = None) -> Selected:
    compiled = compile_selectors(load(config(scorers or ["semantic-match"])), plugins())["s"]
    return compiled.select_model(ModelQuestion(asking(text), ModelStates(), now_s=0.0, now_ms=0))


@pytest.mark.requirement("S3-11")
@pytest.mark.parametrize(
    ("text", "model"), [("Why does my Python code crash?", "coder"), ("Write a poem about trains", "writer")]
)
def test_the_model_that_is_described_as_good_at_it_is_chosen_and_the_decision_says_how(text: str, model: str) -> None:
    selected = select(text)
    assert (selected.model.name, selected.total) == (model, pytest.approx(1.0))
    assert selected.note == f"default: {model} (1.00); semantic-match: lexical"


def test_a_prompt_that_matches_nothing_leaves_the_choice_to_the_other_scorers() -> None:
    quality: list[object] = ["semantic-match", "cost"]
    assert select("zzz qqq", quality).total == pytest.approx(1.0)
    assert "semantic-match: lexical" in select("zzz qqq").note


def test_a_request_without_text_is_scored_alike_and_the_decision_says_so() -> None:
    selected = select(None)
    assert selected.total == 0.0
    assert selected.note.endswith("; semantic-match: no text to match")


def test_undescribed_strengths_are_a_configuration_error() -> None:
    with pytest.raises(
        ConfigError, match=r"selectors\.s\.rankings\.default\.scorers\.0: .* needs `strengths` of a model; none of a, b"
    ):
        check(load(config(["semantic-match"], a="", b="")))
