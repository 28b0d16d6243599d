"""docs/kubernetes.md shows what is right; its role and the one that is deployed have what is asked for and no more."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman_metrics_collector.configuration import check
from pointsman_metrics_collector.domain.kubernetes.collections import inference_pool, objectives, pods, rewrites
from pointsman_runtime.configuring.config_text import parse

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
CONFIGURATIONS = [block for block in BLOCKS if block.startswith("pools:")]
RENDERED = (ROOT / "deploy/k8s/overlays/complete/pointsman.yaml").read_text()
DOCUMENTS: dict[str, list[dict[str, Any]]] = {
    "documented": [yaml.safe_load(block) for block in BLOCKS],
    "deployed": [each for each in yaml.load_all(RENDERED, yaml.CSafeLoader) if each],
}


@pytest.mark.parametrize("text", CONFIGURATIONS, ids=range(len(CONFIGURATIONS)))
def test_a_shown_pool_is_right(text: str) -> None:
    config = parse(text)
    check(config)
    assert all(pool.kubernetes is not None for pool in config.pools.values())


@pytest.mark.parametrize("where", DOCUMENTS)
def test_the_role_lists_and_watches_what_the_collector_does(where: str) -> None:
    [role] = [each for each in DOCUMENTS[where] if each.get("kind") == "Role"]
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    watched = [inference_pool("n", "p"), pods("n", {}), *objectives("n"), *rewrites("n")]
    needed = {(each.api.rpartition("/")[0], each.plural, verb) for each in watched for verb in ("list", "watch")}
    assert granted == needed
