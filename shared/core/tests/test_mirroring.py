"""The mirrors of a configuration."""

from typing import Any

import pytest

from pointsman_core.config import ConfigError, load, response_entry


def config(response: list[Any], **mirror: Any) -> dict[str, Any]:
    return {
        "pools": {"a": {"models": ["now", "next"]}},
        "mirrors": {"lab": {"to": "next", **mirror}},
        "profiles": {"standard": {"request": ["scheduler"], "response": response}},
    }


def test_a_mirror_sees_the_texts_of_its_share_when_the_client_has_everything() -> None:
    found = load(config([{"stage": "mirror/lab", "share": 0.05}]))
    [use] = found.profiles["standard"].response
    entry = response_entry(use, found.stages)
    assert entry["on_error"] == "allow"
    answer: Any = entry["answer"]
    assert (answer["mode"], answer["content"], answer["share"]) == ("after", "text", 0.05)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (config(["mirror/labs"]), "mirror 'labs'"),
        (config(["mirror"]), "mirror 'default'"),
        (config([{"stage": "mirror/lab", "mode": "buffer"}]), "leave `mode` out"),
        (config([{"stage": "mirror/lab", "share": 0}]), "greater than 0"),
        (config([{"stage": "guard", "share": 0.5}]), "`share` needs `mode: after`"),
        (config([], to="nxt"), "nxt"),
        (config([], to=[]), "at least 1"),
        (config([], to=["now", "next"], at_once=1), "`at_once`"),
        (config([], priority=1), "less than or equal to 0"),
        (config([]) | {"profiles": {"standard": {"request": ["mirror/lab", "scheduler"]}}}, "mirror"),
        (
            config([]) | {"profiles": {"standard": {"request": [{"stage": "scheduler", "share": 0.5}]}}},
            "on the way back",
        ),
    ],
)
def test_a_mirror_that_could_not_work_is_refused(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(document)
