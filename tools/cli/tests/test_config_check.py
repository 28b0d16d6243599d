"""A mistake in a configuration is reported at its key and line, in the words of the file."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

import pointsman_plugins.registry
from pointsman_cli.config import configuration


def told(text: str) -> list[str]:
    return [configuration.shown(problem) for problem in configuration.check(text)[1]]


SCHEDULING = """\
pools: {p: {models: [m]}}
scheduling:
  default:
    scorers:
      - queu
"""
LONG_FORM = """\
scheduling:
  default:
    profiles:
      default:
        filters: [healthy, {use: role, role: decoder}]
"""
SELECTOR = """\
pools: {p: {models: [m]}}
selectors:
  s:
    filters: [healthy]
    scorers:
      - cost
      - {use: latency, wurst: 3}
"""


SEVERAL = """\
preprocessing: [{use: request-limit, rate: x}, nobody, {use: tenant-salt, wurst: 1}]
selectors: {a: {filters: [x, y]}, b: {scorers: [z]}}
guards: {a: {detectors: [x]}, b: {detectors: [y]}}
scheduling: {a: {filters: [x, y]}, b: {scorers: [z]}}
"""


def test_mistakes_in_several_places_are_all_reported() -> None:
    assert [problem.path for problem in configuration.check(SEVERAL)[1]] == [
        "preprocessing.0.rate",
        "preprocessing.1.use",
        "preprocessing.2.wurst",
        "selectors.a.filters.0.use",
        "selectors.a.filters.1.use",
        "selectors.b.scorers.0.use",
        "guards.a.detectors.0.use",
        "guards.b.detectors.0.use",
        "scheduling.a.filters.0.use",
        "scheduling.a.filters.1.use",
        "scheduling.b.scorers.0.use",
    ]


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        (SCHEDULING, "scheduling.default.scorers.0.use: unknown scorer type 'queu'; did you mean 'queue'?", "(line 5)"),
        (LONG_FORM, "scheduling.default.profiles.default.filters.1.role: filter 'role' (role): role: ", "(line 5)"),
        (
            SELECTOR,
            "selectors.s.scorers.1.wurst: model scorer 'latency' (latency): unknown parameter 'wurst'",
            "(line 7)",
        ),
        (
            "scheduling:\n  a: {}\n  b:\n    handler: shadow\n",
            "scheduling.b.handler: profile handler 'shadow' (shadow) needs a second scheduling profile",
            "(line 4)",
        ),
        (
            "preprocessing:\n  - {use: request-limit, rate: x}\n",
            "preprocessing.0.rate: request processor 'request-limit' (request-limit): rate: 'x' is not a rate",
            "(line 2)",
        ),
        (
            "profiles: {a: {}}\nprofile-picker:\n  use: rules\n  default: a\n  rules:\n    - {when: 'true', to: a}\n",
            "profile-picker.rules.0.to: profile picker 'rules' (rules): unknown parameter 'rules.0.to'",
            "(line 6)",
        ),
        (
            "guards:\n  a:\n    detectors:\n      - {use: patterns, patterns: {x: ['(']}}\n",
            "guards.a.detectors.0: 'patterns': an expression is invalid: missing ): (",
            "(line 4)",
        ),
        ("# cut off\n", "the configuration is empty; write at least `pools` or `providers`", ""),
        (
            "pools: {}\nstages:\n  my stage: {}\n",
            "stages.my stage: a stage's name may have only letters, digits",
            "(line 3)",
        ),
    ],
)
def test_a_mistake_is_reported_at_its_key_and_line(text: str, start: str, end: str) -> None:
    (line,) = told(text)
    assert line.startswith(start)
    assert line.endswith(end)


def test_an_installed_plugin_that_cannot_be_imported_is_a_problem_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = EntryPoints([EntryPoint("mine", "no_such_distribution:Mine", "pointsman.scheduler.filters")])
    monkeypatch.setattr(pointsman_plugins.registry, "installed", lambda: found)
    (line,) = told("pools: {p: {models: [m]}}")
    assert line.startswith("entry point 'mine' of pointsman.scheduler.filters: no_such_distribution:Mine can't be")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "pools: {p: {models: [m]}}\nedge:\n  decision_timeout: 30\n",
            "edge.decision_timeout: 30 has no unit; write one of ms, s, m, min, h, d behind it, e.g. 30s (line 3)",
        ),
        (
            "pools: {p: {models: [m]}}\npreprocessing: [{use: jwt-auth, secret: env:KEY, leeway: 30}]\n",
            "leeway: 30 has no unit",
        ),
    ],
)
def test_a_duration_without_a_unit_is_refused(text: str, expected: str) -> None:
    assert [words for words in told(text) if expected in words], told(text)


def test_a_stored_configuration_may_have_seconds_as_numbers_and_zero_needs_no_unit() -> None:
    text = "pools: {p: {models: [m]}}\nscheduling: {p: {flow_control: {no_endpoint_ttl: 0}}}\n"
    assert not [words for words in told(text) if "unit" in words]
    numbers = "pools: {p: {models: [m]}}\nedge: {decision_timeout: 30}\n"
    assert configuration.check(numbers, by_hand=False)[1] == []
