"""Guard policies in the configuration."""

import pytest

from pointsman_core.config import ConfigError, Guard, load


def profile(request: list[object], response: list[object] = [], **guards: object) -> dict[str, object]:  # noqa: B006
    return {"guards": guards, "profiles": {"a": {"request": [*request, "scheduler"], "response": response}}}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (profile(["guard/hose"], house={}), "profiles.a.request.0: unknown guard 'hose'; did you mean 'house'?"),
        (profile(["guard"], ["guard/hose"], house={}), "profiles.a.response.0: unknown guard 'hose'"),
        (profile(["guard/a"], a={"restore": True}), "put 'guard/a' into `response` too"),
        (profile(["guard/a"], ["guard"], a={"restore": True}), "put 'guard/a' into `response` too"),
        (profile(["guard/a", "guard/b"], a={}, b={}), "the guard 'a' redacts the prompt already"),
        (profile(["guard"], [{"stage": "guard", "content": "body"}]), "a guard always gets texts"),
    ],
)
def test_guards_that_can_not_do_what_they_say_are_refused(document: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(document)
    assert problem in "\n".join(f"{path}: {text}" for path, text in refused.value.problems)


def test_the_default_guard_needs_no_entry_and_a_second_one_may_look_without_redacting() -> None:
    strict = {"actions": {"pii": "block"}}
    load(profile(["guard", "guard/strict"], ["guard"], strict=strict))
    load(profile(["guard", {"stage": "guard/other", "mode": "shadow"}], other={}))
    load(profile(["guard/a"], [{"stage": "guard/a", "mode": "buffer"}], a={"restore": True}))


def test_the_longest_name_and_the_nearest_section_decide_the_action() -> None:
    guard = Guard.model_validate(
        {"actions": {"pii": "block", "pii.email": "flag"}, "response": {"pii.email": "ignore"}, "otherwise": "flag"}
    )
    assert guard.action_for("pii.card", "request") == "block"
    assert guard.action_for("pii.email", "request") == "flag"
    assert guard.action_for("pii.email.work", "response") == "ignore"
    assert guard.action_for("secret.aws", "request") == "block"
    assert guard.action_for("injection.override", "response") == "flag"
    assert guard.action_for("moderation.hate", "request") == "flag"
    assert not guard.redacts("request")
    assert Guard().redacts("response")
