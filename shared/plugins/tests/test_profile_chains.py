"""Request processors of profiles: their order, their edits, and how they end a request."""

from collections.abc import Callable
from typing import Final

import pytest
from pydantic import JsonValue

from pointsman_contracts.journey import BodyEdit, HeaderEdit, Journey, RequestFacts
from pointsman_contracts.message import NO_BYTES, Blob
from pointsman_core.config import ConfigError, load
from pointsman_core.plugins import Key, PluginError
from pointsman_core.refusal import Refusal
from pointsman_plugins import Params
from pointsman_plugins.profile_chains import Place, Processed, build_chains, request_processors
from pointsman_plugins.registry import Registry
from pointsman_plugins.routing import ProfileProcessor, RoutedRequest
from pointsman_testing import builders

STEPS: Final[Key[list[str]]] = Key("steps", list[str])
FACTS: Final = RequestFacts(
    api="chat.completions", fields={"temperature": 0.2}, headers={"x-plan": "gold"}, fingerprint=Blob(b"12345678"),
    attributes={"before": 1}, session="s",
)  # fmt: skip


class StepParams(Params):
    refuses: bool = False
    writes: str = "steps"


class Step(ProfileProcessor[StepParams]):
    type_name = "step"
    produces = (STEPS,)

    def process_request(self, request: RoutedRequest) -> None:
        request.write(Key(self.params.writes, list[str]), [*(request.read(STEPS) or []), self.name])
        request.say(f"step {self.name}")
        if self.params.refuses:
            raise Refusal(403, "No.", code="refused_here")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Processed]:
    registry = Registry(ProfileProcessor, (*request_processors().types.values(), Step))
    monkeypatch.setattr("pointsman_plugins.profile_chains.request_processors", lambda: registry)

    def run(place: Place, own: list[JsonValue], shared: list[JsonValue] | None = None) -> Processed:
        config = load({"profiles": {"p": {"processors": {place: own}}}, "processors": {place: shared or []}})
        chains = build_chains(config, place)
        assert chains is not None
        return chains.process_request(journey(), "profile-picker", "picker-1")

    return run


def journey() -> Journey:
    return builders.journey(
        "scheduler", request=FACTS, profile="p", headers=(HeaderEdit(name="x-old", value="1"),),
        body=(BodyEdit(field="model", value="m"),),
    )  # fmt: skip


@pytest.mark.requirement("CHAIN-1", "S0-16")
def test_shared_processors_stand_around_those_of_the_profile(run: Callable[..., Processed]) -> None:
    own: list[JsonValue] = [{"use": "step", "name": "one"}, {"use": "step", "name": "two"}]
    before = run("before_model", own, ["step"])
    assert before.refusal is None
    assert before.journey.request.attributes == {"before": 1, "steps": ["step", "one", "two"]}
    after = run("after_model", own, ["step"])
    assert after.journey.request.attributes["steps"] == ["one", "two", "step"]
    reports = after.journey.trail[len(journey().trail) :]
    assert [(report.stage, report.outcome, report.note) for report in reports] == [
        (f"profile-picker/{name}", "passed", f"step {name}") for name in ("one", "two", "step")
    ]
    assert all(report.took_ms > 0 for report in reports)


@pytest.mark.requirement("CHAIN-1")
def test_a_refusal_ends_the_chain(run: Callable[..., Processed]) -> None:
    stopped = run("before_model", [{"use": "step", "name": "no", "refuses": True}, "step"])
    assert stopped.refusal is not None
    assert stopped.refusal.code == "refused_here"
    assert [(each.stage, each.outcome) for each in stopped.journey.trail[-1:]] == [("profile-picker/no", "rejected")]


def test_an_undeclared_attribute_fails_the_request(run: Callable[..., Processed]) -> None:
    with pytest.raises(PluginError, match="'other' isn't declared"):
        run("before_model", [{"use": "step", "writes": "other"}])


@pytest.mark.requirement("CHAIN-1")
def test_headers_and_fields_are_edited_and_the_fingerprint_of_another_body_is_gone(
    run: Callable[..., Processed],
) -> None:
    headers: JsonValue = {
        "use": "set-headers", "set": {"X-Where": "{profile}/{model}/{session}"}, "remove": ["x-plan"],
        "answer": {"x-said": "yes"},
    }  # fmt: skip
    fields: JsonValue = {"use": "set-fields", "set": {"n": 1}, "default": {"temperature": 1, "top_p": 0.5}}
    changed = run("after_model", [headers, fields]).journey
    assert changed.headers == (
        HeaderEdit(name="x-old", value="1"), HeaderEdit(name="x-plan", value=None),
        HeaderEdit(name="x-where", value=f"p/{changed.target.model if changed.target else ''}/s"),
    )  # fmt: skip
    assert changed.answer_headers == (HeaderEdit(name="x-said", value="yes"),)
    model = BodyEdit(field="model", value="m")
    assert changed.body == (model, BodyEdit(field="top_p", value=0.5), BodyEdit(field="n", value=1))
    assert changed.request.fingerprint == NO_BYTES
    assert run("after_model", ["set-headers"]).journey.request == FACTS


def test_a_profile_without_processors_is_left_alone() -> None:
    assert not build_chains(load({"profiles": {"p": {}}}), "before_model")
    profiles = {"p": {}, "q": {"processors": {"before_model": ["set-headers"]}}}
    config = load({"profiles": profiles, "profile-picker": {"default": "p"}})
    chains = build_chains(config, "before_model")
    assert chains
    untouched = journey()
    assert chains.process_request(untouched, "s", "i") == Processed(untouched, None)


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        ("set-header", "did you mean 'set-headers'"),
        ({"use": "set-fields", "set": {"model": "m"}}, "the model is chosen by"),
        ({"use": "set-headers", "set": {"host": "h"}}, "the edge writes this header itself"),
    ],
)
def test_a_wrong_processor_is_refused_with_its_place(processor: JsonValue, words: str) -> None:
    config = load({"profiles": {"p": {"processors": {"before_model": [processor]}}}})
    with pytest.raises(ConfigError, match=rf"profiles\.p\.processors\.before_model\.0.*{words}"):
        build_chains(config, "before_model")


@pytest.mark.requirement("COMPOSE-1", "CHAIN-1")
def test_a_timed_processor_calls_another_one_and_tells_its_time(run: Callable[..., Processed]) -> None:
    timed: JsonValue = {"use": "timed", "of": "step", "most": "1m"}
    passed = run("before_model", ["step", timed]).journey
    assert passed.request.attributes["steps"] == ["step"]
    report = passed.trail[-1]
    assert report.stage == "profile-picker/timed"
    assert report.note is not None
    assert report.note.startswith("step: step step; ")
    assert [each.stage for each in passed.trail if each.stage == "profile-picker/step"] == []


@pytest.mark.requirement("COMPOSE-1")
def test_processors_that_call_each_other_in_a_circle_are_refused_with_the_path() -> None:
    circle: JsonValue = [{"use": "timed", "name": each, "of": other, "most": "1ms"} for each, other in ("ab", "ba")]
    config = load({"profiles": {"p": {"processors": {"before_model": circle}}}})
    with pytest.raises(ConfigError, match="cycle of references: a -> b -> a"):
        build_chains(config, "before_model")
