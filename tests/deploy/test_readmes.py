"""Commands of the documents in deploy: run where that is possible, else held against what is there."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("deploy/README.md", "deploy/nats/README.md")
COMMANDS = [
    (document, line.removeprefix("$ "))
    for document in DOCUMENTS
    for block in re.findall(r"```console\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    for line in block.splitlines()
]
BY_OTHERS = ("pointsman doctor", "pointsman config status", "make test-cluster")
"""Run by tests/integration/test_accounts.py and tests/docs; the last one needs a cluster."""


def _options(words: list[str]) -> dict[str, str]:
    return {key: value for key, value in pairwise(words) if key.startswith("-")}


@pytest.mark.parametrize(("document", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_a_command_works_or_names_what_exists(document: str, command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    options = _options(words)
    if command in BY_OTHERS:
        return
    if words[:2] == ["pointsman", "nats"]:
        script = str(Path(sys.executable).with_name("pointsman"))
        folder = ROOT if "--check" in words else tmp_path
        ran = subprocess.run([script, *words[1:]], check=False, cwd=folder, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        if "--kubernetes" in words:
            # The next command applies this.
            assert list(yaml.safe_load_all((tmp_path / "secrets/secrets.yaml").read_text()))
    elif words[:2] == ["docker", "build"]:
        service, _, _ = options["--build-arg"].partition("=")
        assert f"ARG {service}" in (ROOT / options["-f"]).read_text()
    elif words[0] == "helm":
        assert words[2] == "pointsman"
        if words[1] in ("install", "upgrade"):
            assert (ROOT / words[3] / "Chart.yaml").is_file()
            assert "--values" not in options or (ROOT / options["--values"]).is_file()
    elif "exec" in words:
        # tests/cluster runs the commands; here they must be ones of this version.
        assert words[:6] == ["kubectl", "--namespace", "pointsman", "exec", "deploy/pointsman-cli", "--"]
        named = [word for word in words[7:] if word.isalpha()]
        ran = subprocess.run(
            [Path(sys.executable).with_name(words[6]), *named, "--help"], check=False, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    elif "--kustomize" in options:
        assert (ROOT / options["--kustomize"] / "kustomization.yaml").is_file()
        if shutil.which("kubectl"):
            subprocess.run(["kubectl", "kustomize", ROOT / options["--kustomize"]], check=True, capture_output=True)
    else:
        assert command in (
            "kubectl create namespace pointsman",
            "kubectl label namespace pointsman pointsman-gateway=true",
            "kubectl apply --namespace pointsman --filename secrets/secrets.yaml",
            "kubectl --namespace pointsman delete pvc --selector app.kubernetes.io/name=pointsman-nats",
        )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_everything_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / document).parent.joinpath(link).exists(), link
    for path in re.findall(r"`((?:tests|scripts|deploy|contracts|k8s|prometheus|overlays)/[\w./-]+)`", text):
        places = (ROOT, ROOT / "deploy", ROOT / "deploy/k8s")
        assert any((place / path).exists() for place in places), path


def test_the_example_autoscaler_of_engines_follows_its_schema() -> None:
    example = yaml.safe_load((ROOT / "deploy/k8s/examples/engine-autoscaler.yaml").read_text())
    schemas = json.loads((ROOT / "tests/deploy/schemas/objects.json").read_text())
    reference = f"#/definitions/{schemas['kinds']['autoscaling/v2 HorizontalPodAutoscaler']}"
    check = jsonschema.Draft7Validator({"$ref": reference, "definitions": schemas["definitions"]})
    assert list(check.iter_errors(example)) == []  # pyright: ignore[reportUnknownMemberType] - an overload of it is untyped
    rules = (ROOT / "deploy/prometheus/adapter.yaml").read_text()
    for metric in example["spec"]["metrics"]:
        assert metric["external"]["metric"]["name"] in rules
