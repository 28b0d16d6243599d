"""Renders every overlay of deploy/k8s with kubectl and the chart with helm, and keeps what both agree on.

    python scripts/render_manifests.py
    python scripts/render_manifests.py --check [kubectl] [helm]

The renderings stand in tests/deploy/rendered, with a fingerprint of the files that they were made of, so that they can
be tested where neither tool is. `--check` writes nothing; it compares with what the named tools render.

Of the examples, which no overlay has, what they make otherwise than `production` is kept. The hash at the end of a name
is each tool's own, and only the chart annotates pods with that of their settings: objects are compared without them.
"""

import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
RENDERED: Final = ROOT / "tests/deploy/rendered"
CHART: Final = ROOT / "deploy/helm/pointsman"
OVERLAYS: Final = ("dev", "production", "complete", "bundle")
EXAMPLES: Final = ("engines", "mounts")
_HASHED: Final = re.compile(r"\b(pointsman-configuration)-[0-9a-z]{10}\b")
_SETTINGS: Final = "pointsman-environment"
NAMESPACE: Final = "pointsman"
KUBERNETES: Final = "1.34.0"
"""The version that the schemas are of."""

Objects = dict[tuple[str, str], dict[str, Any]]


def fingerprint() -> str:
    """Of everything that is rendered."""
    digest = hashlib.sha256()
    for folder in (ROOT / "deploy/k8s", CHART):
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".md"):
            digest.update(f"{path.relative_to(ROOT)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def kustomized(overlay: str) -> str:
    """What `kubectl kustomize` makes of an overlay."""
    return _kustomized(f"overlays/{overlay}")


def templated(overlay: str) -> str:
    """What `helm template` makes of the chart with the values that stand for an overlay."""
    values = CHART / f"values-{overlay}.yaml"
    return _templated(*(("--values", str(values)) if values.exists() else ()))


def exemplified(example: str, tool: str) -> Objects | None:
    """The objects that an example makes otherwise than `production`; None: the tool has no such example."""
    if tool == "helm":
        usual, text = _templated(), _templated("--values", str(CHART / "examples" / f"{example}.yaml"))
    elif (ROOT / "deploy/k8s/examples" / example).is_dir():
        usual, text = kustomized("production"), _kustomized(f"examples/{example}")
    else:
        return None
    before = objects(usual)
    return {key: each for key, each in objects(text).items() if before.get(key) != each}


def objects(text: str) -> Objects:
    """By kind and name, which are unique in what we render."""
    found = {(each["kind"], each["metadata"]["name"]): each for each in yaml.load_all(text, yaml.CSafeLoader) if each}
    for each in found.values():
        pod = each.get("spec", {}).get("template", {}).get("metadata", {})
        if pod.get("annotations", {}).keys() == {_SETTINGS}:
            del pod["annotations"]
    return found


def _kustomized(folder: str) -> str:
    return _run("kubectl", "kustomize", str(ROOT / "deploy/k8s" / folder))


def _templated(*given: str) -> str:
    return _run(
        "helm", "template", "pointsman", str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBERNETES, *given
    )


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write() -> list[str]:
    """Keep what both tools render; returns what they don't agree on."""
    problems: list[str] = []
    for overlay in OVERLAYS:
        text = kustomized(overlay)
        problems += _differences(overlay, "helm", templated(overlay), text)
        _keep(overlay, objects(text))
    for example in EXAMPLES:
        found = exemplified(example, "helm")
        problems += [f"kubectl renders the example {example} otherwise"] * (
            exemplified(example, "kubectl") not in (None, found)
        )
        _keep(example, found or {})
    (RENDERED / "fingerprint").write_text(f"{fingerprint()}\n", encoding="utf-8")
    return problems


def _keep(name: str, found: Objects) -> None:
    text = yaml.dump_all([found[key] for key in sorted(found)], Dumper=yaml.CSafeDumper, width=120)
    (RENDERED / f"{name}.yaml").write_text(text, encoding="utf-8")


def _kept(name: str) -> str:
    return (RENDERED / f"{name}.yaml").read_text(encoding="utf-8")


def check(tools: list[str]) -> list[str]:
    """What isn't as it is kept."""
    problems: list[str] = []
    for tool in tools:
        for overlay in OVERLAYS:
            problems += _differences(overlay, tool, _RENDERERS[tool](overlay), _kept(overlay))
        for example in EXAMPLES:
            if exemplified(example, tool) not in (None, objects(_kept(example))):
                problems.append(f"{tool} renders the example {example} otherwise")
    if (RENDERED / "fingerprint").read_text(encoding="utf-8").strip() != fingerprint():
        problems.append("deploy/k8s or deploy/helm has changed since: run scripts/render_manifests.py")
    return problems


def _differences(overlay: str, tool: str, rendered: str, kept: str) -> list[str]:
    one, other = (objects(_HASHED.sub(r"\1", text)) for text in (rendered, kept))
    return [
        f"{overlay}: {tool} renders {kind} {name} otherwise"
        for kind, name in sorted({*one, *other})
        if one.get((kind, name)) != other.get((kind, name))
    ]


_RENDERERS = {"kubectl": kustomized, "helm": templated}


def main() -> int:
    """Returns the exit code."""
    arguments = sys.argv[1:]
    problems = check(arguments[1:]) if arguments[:1] == ["--check"] else write()
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
