"""Renders deploy/helm/pointsman into deploy/k8s: the chart is written by hand, the manifests are generated.

    python scripts/render_manifests.py              # write deploy/k8s
    python scripts/render_manifests.py --check      # write nothing; fail where deploy/k8s isn't what the chart renders
    python scripts/render_manifests.py --values -   # print what the chart renders with the values on standard input

The renderer is Helm's own, from the package helm-python-sdk, or else the command `helm`. Without either, writing fails,
and `--check` says that it compared nothing and passes.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "deploy/helm/pointsman"
MANIFESTS: Final = ROOT / "deploy/k8s"
NAMESPACE: Final = "pointsman"
KUBERNETES: Final = "1.34.0"
"""The version whose schemas the manifests are checked against."""
OVERLAYS: Final = ("dev", "production", "complete", "bundle")
"""Each rendered with `values-<overlay>.yaml`, or with the chart's own values where that file doesn't exist."""
SCALED: Final = {"enabled": True, "custom": True}
"""Autoscalers where the values leave them to the cluster: there is none to look into."""
HOOK: Final = "helm.sh/hook"
"""Annotation of objects for a moment of Helm's, such as `helm test`. Other tools know no such moments."""
EXAMPLES: Final = ("engines",)
"""Rendered with `examples/<example>.yaml`; only the objects that `production` doesn't have are written."""

Object = dict[str, Any]


class NoRenderer(Exception):
    """Neither the package nor the command is installed."""


def render(values: Object) -> list[Object]:
    """The objects that the chart renders with these values over its own, by kind and name.

    Raises NoRenderer, and RuntimeError with Helm's message when a template fails.
    """
    text = _by_package(values) if importlib.util.find_spec("helm_python") else _by_command(values)
    objects = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]
    return sorted(objects, key=lambda each: (each["kind"], each["metadata"]["name"]))


def _by_package(values: Object) -> str:
    from helm_python import Chart, HelmError

    try:
        with Chart.load(CHART) as chart:
            rendered = chart.render(values, name="pointsman", namespace=NAMESPACE)
            return "\n---\n".join(text for path, text in rendered.items() if path.endswith(".yaml"))
    except HelmError as error:
        raise RuntimeError(str(error)) from error


def _by_command(values: Object) -> str:
    command = shutil.which("helm")
    if command is None:
        raise NoRenderer("install helm-python-sdk, or Helm (3.14 or newer) as the command helm")
    options = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES, "--values", "-")
    ran = subprocess.run(
        [command, "template", "pointsman", str(CHART), *options],
        check=False, capture_output=True, text=True, input=json.dumps(values),
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return ran.stdout


def manifests() -> dict[Path, list[Object]]:
    """Every generated file with its objects."""
    found = {
        MANIFESTS / "overlays" / overlay / "pointsman.yaml": _lasting(_values(CHART / f"values-{overlay}.yaml"))
        for overlay in OVERLAYS
    }
    usual = found[MANIFESTS / "overlays/production/pointsman.yaml"]
    for example in EXAMPLES:
        objects = _lasting(_values(CHART / "examples" / f"{example}.yaml"))
        found[MANIFESTS / "examples" / f"{example}.yaml"] = [each for each in objects if each not in usual]
    return found


def _lasting(values: Object) -> list[Object]:
    objects = render({**values, "autoscaling": SCALED | values.get("autoscaling", {})})
    return [each for each in objects if HOOK not in each["metadata"].get("annotations", {})]


def _values(path: Path) -> Object:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}


class _Dumper(yaml.CSafeDumper):
    """Writes text of several lines as such."""


def _text(dumper: yaml.CSafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)  # pyright: ignore[reportUnknownMemberType] - PyYAML's stubs leave the value untyped


_Dumper.add_representer(str, _text)


def dump(objects: list[Object]) -> str:
    """The objects as YAML documents."""
    return yaml.dump_all(objects, Dumper=_Dumper, width=120, sort_keys=False)


def write() -> None:
    """Write every generated file."""
    for path, objects in manifests().items():
        head = "# Generated from deploy/helm/pointsman by `make generate`; change the chart.\n"
        path.write_text(f"{head}{dump(objects)}", encoding="utf-8")


def differences() -> list[str]:
    """Why the generated files aren't what the chart renders, one sentence for each object; empty when they are."""
    problems: list[str] = []
    for path, rendered in manifests().items():
        kept = [each for each in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader) if each]
        one, other = ({(each["kind"], each["metadata"]["name"]): each for each in each_} for each_ in (rendered, kept))
        problems += [
            f"{path.relative_to(ROOT)}: {kind} {name} isn't what the chart renders; run `make generate`"
            for kind, name in sorted({*one, *other})
            if one.get((kind, name)) != other.get((kind, name))
        ]
    return problems


def main() -> int:
    """Returns the exit code."""
    try:
        match sys.argv[1:]:
            case ["--check"]:
                problems = differences()
                sys.stderr.writelines(f"{problem}\n" for problem in problems)
                return 1 if problems else 0
            case ["--values", "-"]:
                sys.stdout.write(dump(render(yaml.safe_load(sys.stdin) or {})))
            case _:
                write()
    except NoRenderer as missing:
        sys.stderr.write(f"deploy/k8s: not rendered and not compared; {missing}\n")
        return 0 if sys.argv[1:] == ["--check"] else 3
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
