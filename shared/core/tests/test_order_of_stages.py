"""Stages may stand in any order but those that would let something pass unchecked; each can be off or in shadow."""

import pytest
import yaml

from pointsman_core.config import Config, ConfigError, ProcessorUse, active, load, response_entry, stage_entry

SELECTORS: dict[str, object] = {"pools": {"p": {"models": ["m"]}}, "selectors": {"s": {}}}


def problems(**sections: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(SELECTORS | sections)
    return str(caught.value)


def profile(request: list[object] | None = None, response: list[object] | None = None) -> dict[str, object]:
    return {"profiles": {"a": {"request": request or ["scheduler"], "response": response or []}}}


@pytest.mark.requirement("S3-2")
@pytest.mark.parametrize(
    ("request_stages", "rule"),
    [
        (["semantic-cache", "guard", "scheduler"], "guard-before-cache"),
        (["semantic-cache", "model-selector/s", "scheduler"], "selection-before-cache"),
    ],
)
def test_an_order_that_would_answer_unchecked_names_both_stages_and_the_rule(
    request_stages: list[object], rule: str
) -> None:
    text = problems(**profile(request_stages))
    assert text.startswith("profiles.a.request.0: semantic-cache stands before")
    assert "profiles.a.request.1" in text
    assert f"({rule})" in text
    config = load(SELECTORS | profile(request_stages) | {"order_exceptions": [rule]})
    assert config.order_exceptions == (rule,)


@pytest.mark.requirement("S3-2", "S3-21")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_answers_are_checked_before_they_are_kept(elsewhere: bool) -> None:
    if elsewhere:
        text = problems(**profile(response=["semantic-cache"]), postprocessing=["guard"])
        assert "guard (postprocessing.0)" in text
    else:
        text = problems(**profile(response=["semantic-cache", "guard"]))
        assert "guard (profiles.a.response.1)" in text
    assert "check-before-populate" in text
    load(SELECTORS | profile(response=["guard", "semantic-cache"]))


def test_a_stage_that_is_off_stands_nowhere() -> None:
    load(SELECTORS | profile([{"stage": "semantic-cache", "mode": "off"}, "guard", "scheduler"]))
    text = problems(**profile(["guard", {"stage": "scheduler", "mode": "off"}]))
    assert "the last stage must be `scheduler`" in text
    text = problems(**profile([{"stage": "scheduler", "mode": "shadow"}]))
    assert "the last stage must be `scheduler`" in text
    assert "no stage after it would run" in problems(**profile(["scheduler", "guard", "scheduler"]))


@pytest.mark.requirement("S3-3")
def test_stages_are_enforced_in_shadow_or_off() -> None:
    text = """
profiles:
  a:
    request: [{stage: guard, mode: shadow, on_error: deny}, {stage: semantic-cache, mode: off}, scheduler]
    response: [{stage: guard, mode: shadow}, {stage: semantic-cache, mode: off}]
"""
    config: Config = load(yaml.safe_load(text))
    request = [stage_entry(use, {}) for use in active(config.profiles["a"].request)]
    assert [(entry["service"], entry["mode"], entry["on_error"]) for entry in request] == [
        ("guard", "shadow", "allow"),
        ("scheduler", "enforce", "deny"),
    ]
    [back] = [response_entry(use, {}) for use in active(config.profiles["a"].response)]
    assert back["answer"] == {
        "mode": "after",
        "content": "text",
        "window": 512,
        "overlap": 128,
        "sentences": True,
        "share": 1.0,
    }
    assert "is for stages on the way back" in problems(**profile([{"stage": "guard", "mode": "window"}, "scheduler"]))


@pytest.mark.requirement("S3-3")
def test_processors_have_a_switch_a_timeout_and_a_word_for_errors_beside_their_parameters() -> None:
    [use] = load(
        {"preprocessing": [{"use": "x", "mode": False, "timeout": "50ms", "on_error": "degrade", "rate": 5}]}
    ).preprocessing
    assert use == ProcessorUse.model_validate(
        {"use": "x", "mode": "off", "timeout": 0.05, "on_error": "degrade", "rate": 5}
    )
    assert use.spec.params == {"rate": 5}
    with pytest.raises(ConfigError, match=r"preprocessing\.0\.mode: Input should be 'enforce', 'shadow' or 'off'"):
        load({"preprocessing": [{"use": "x", "mode": "reserve"}]})
