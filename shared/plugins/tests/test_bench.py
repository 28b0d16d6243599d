"""A plugin of another distribution is written and tested with pointsman_plugins alone."""

import ast
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import Field

from pointsman_plugins import Params, PluginError, Refusal
from pointsman_plugins.bench import candidates, incoming, journey, make, model, scores_by_name, texts
from pointsman_plugins.guarding import Checked, Detector, Finding
from pointsman_plugins.picking import Choice, PoolStates, ProfilePicker
from pointsman_plugins.preprocessing import Incoming, RequestProcessor
from pointsman_plugins.scheduling.arrays import Scores
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Scorer
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.selecting import ModelQuestion, ModelScorer

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "plugin"


class FewestParams(Params):
    full: float = Field(default=10.0, gt=0)


class Fewest(Scorer[FewestParams]):
    type_name = "fewest"

    def score(self, request: ScheduleRequest, candidates: Candidates) -> Scores:
        return 1.0 - candidates.waiting / self.params.full


class Polite(RequestProcessor):
    type_name = "polite"

    def process(self, incoming: Incoming) -> None:
        if incoming.header("x-please") is None:
            raise Refusal(400, "Say please.")
        incoming.set_field("temperature", 0)


class Long(ProfilePicker):
    type_name = "long"

    def pick(self, journey: object, pools: PoolStates, now_s: float) -> Choice | None:
        return None


class Codename(Detector):
    type_name = "codename"

    def detect(self, checked: Checked) -> Sequence[Finding]:
        return [Finding("codename", self.name, at) for at, text in enumerate(checked.texts) if "zebra" in text.text]


class Cheap(ModelScorer):
    type_name = "cheap"

    def scores(self, question: ModelQuestion | None, candidates: Sequence[object]) -> list[float]:
        return [1.0] * len(candidates)


def test_a_scorer_is_driven_over_workers_that_are_written_down() -> None:
    found = candidates({"a": {"waiting": 5}, "b": {"waiting": 0}})
    scores = make(Fewest, full=10).score(ScheduleRequest("r"), found)
    assert scores_by_name(found, list(scores)) == {"a": 0.5, "b": 1.0}


def test_wrong_parameters_are_refused_in_the_words_of_a_service() -> None:
    with pytest.raises(PluginError, match="unknown parameter 'ful'; did you mean 'full'"):
        make(Fewest, ful=10)


def test_a_processor_reads_edits_and_refuses_a_request() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    request = incoming(body, {"x-please": "1"})
    make(Polite).process(request)
    assert request.field("temperature") == 0
    with pytest.raises(Refusal, match="Say please"):
        make(Polite).process(incoming(body))


def test_pickers_detectors_and_model_plugins_get_their_values() -> None:
    assert make(Long).pick(journey(attributes={"tools": 3}), PoolStates(), 0.0) is None
    assert [finding.at for finding in make(Codename).detect(texts("a", "zebra"))] == [1]
    assert make(Cheap).scores(None, [model("small", quality=0.2)]) == [1.0]


def test_the_example_imports_nothing_of_a_service() -> None:
    source = (EXAMPLE / "tool_count" / "__init__.py").read_text()
    modules = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.module}
    assert {name.partition(".")[0] for name in modules if name.startswith("pointsman")} == {"pointsman_plugins"}


def test_the_example_runs_where_no_service_is_installed() -> None:
    script = f"""
    import sys
    sys.path.insert(0, {str(EXAMPLE)!r})
    import test_tool_count
    test_tool_count.test_tools_are_counted()
    loaded = {{name.partition(".")[0] for name in sys.modules if name.startswith("pointsman_")}}
    assert loaded == {{"pointsman_plugins", "pointsman_core", "pointsman_contracts", "pointsman_apis"}}, loaded
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
