"""KServe's LLMInferenceService as a pool: the example follows KServe's schema, and the pool finds its pods."""

import copy
import json
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml

from pointsman_core.config import load

ROOT: Final = Path(__file__).resolve().parents[2]
SERVICE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "deploy/kserve/llm-inference-service.yaml").read_text())
POOL: Final[dict[str, Any]] = yaml.safe_load((ROOT / "deploy/kserve/pointsman.yaml").read_text())
KSERVE: Final[dict[str, Any]] = json.loads((ROOT / "tests/deploy/schemas/kserve.json").read_text())
PODS: Final[dict[str, Any]] = json.loads((ROOT / "tests/deploy/schemas/objects.json").read_text())["definitions"]


def problems(each: dict[str, Any]) -> list[str]:
    schema = {**KSERVE["schema"], "definitions": PODS}
    found = jsonschema.Draft7Validator(schema).iter_errors(each)  # pyright: ignore[reportUnknownMemberType] - an overload of it is untyped
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


@pytest.mark.requirement("KSERVE-1")
def test_the_example_follows_kserves_schema_and_a_misspelt_field_would_be_found() -> None:
    assert f"{SERVICE['apiVersion']} {SERVICE['kind']}" == KSERVE["kind"]
    assert problems(SERVICE) == []
    for path in (("replica",), ("model", "url"), ("template", "containers", 0, "resource")):
        wrong = copy.deepcopy(SERVICE)
        part: Any = wrong["spec"]
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = 1
        assert len(problems(wrong)) == 1, path


@pytest.mark.requirement("KSERVE-1")
def test_the_pool_names_the_pods_as_kserve_labels_them_and_the_model_as_it_serves_it() -> None:
    config = load(POOL)
    name = SERVICE["metadata"]["name"]
    pool = config.pools[name]
    assert pool.models == (SERVICE["spec"]["model"]["name"],)
    assert pool.kubernetes is not None
    # The labels by which KServe's own Service selects the pods (GetWorkloadLabelSelector of its controller).
    assert pool.kubernetes.selector == {
        "app.kubernetes.io/part-of": "llminferenceservice",
        "app.kubernetes.io/name": name,
        "kserve.io/component": "workload",
    }
    assert pool.kubernetes.role_label == "llm-d.ai/role"
    # The port of the container `main` in KServe's template for engines.
    assert pool.kubernetes.ports == (8000,)
