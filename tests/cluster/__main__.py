"""`make test-cluster`: installs the chart in the cluster of KUBECONFIG in each of its shapes, and changes, kills and
scales it under load.

It needs `kubectl` and `helm` in PATH, a default StorageClass, and images of this version that the cluster can pull. It
makes and deletes the namespaces `pointsman-test` and `pointsman-test-clients`.

    make test-cluster ARGS="--image-prefix registry.example/team/"
    make test-cluster ARGS="--only dev"
"""

import argparse
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.cluster import credentials, kinds
from tests.cluster.client import RATE, Client
from tests.cluster.envoy import Envoy
from tests.cluster.kube import CHART, CommandFailed, Installation, run
from tests.cluster.steps import Steps
from tests.cluster.table import Table

SHAPES: Final = ("dev", "default", "bundle", "complete")
PARTS: Final = (
    "frontend", "epp-adapter", "preprocessor", "profile-picker", "model-selector", "scheduler", "metrics-collector",
    "nats",
)  # fmt: skip
SKIPPABLE: Final = ("test", "configure", "logins", "rollout", "shape", "leader", "scale", "drain")
ENGINES: Final = ("--set", "simulatedEngines.enabled=true")
HOSTS: Final = 3
"""Nodes that production's NATS servers need."""


def main() -> int:
    """Returns the exit code: 1 when a step didn't hold."""
    parser = argparse.ArgumentParser(prog="make test-cluster", description=__doc__)
    parser.add_argument(
        "--image-prefix", default="", help="in front of `pointsman/<service>`, e.g. registry.example/team/"
    )
    parser.add_argument("--image-tag", default=version("pointsman-runtime"))
    parser.add_argument("--namespace", default="pointsman-test")
    parser.add_argument("--only", action="append", choices=SHAPES, help="values to install (repeatable; default: all)")
    parser.add_argument("--ready-s", type=float, default=90.0, help="seconds after which everything must be ready")
    parser.add_argument("--rate", type=float, default=RATE, help="requests a second during each step")
    parser.add_argument("--parts", nargs="*", default=PARTS, metavar="PART", help=f"pods to delete: {', '.join(PARTS)}")
    parser.add_argument("--skip", nargs="*", default=(), choices=SKIPPABLE, help="steps to leave out")
    parser.add_argument("--quick", action="store_true", help="install and ask only; nothing is changed under load")
    parser.add_argument("--envoy-image", help="an image of Envoy, to run it before the epp-adapter with `complete`")
    parser.add_argument("--results", type=Path, help="file for the table")
    options = parser.parse_args()
    nodes = len(run(["kubectl", "get", "nodes", "--output", "name"]).split())
    chosen = options.only or SHAPES
    if nodes < HOSTS and set(chosen) - {"dev"}:
        sys.stdout.write(f"{nodes} nodes: only `dev` is installed, the others need {HOSTS} for their NATS servers.\n")
        chosen = ["dev"]
    installation = Installation(options.namespace, options.image_prefix, options.image_tag)
    client, table = Client(installation, rate=options.rate), Table()
    made = kinds.apply_missing() if "complete" in chosen else []
    try:
        with tempfile.TemporaryDirectory() as folder:
            _prepare(installation, client, Path(folder))
            for shape in chosen:
                steps = Steps(installation, client, table, Path(folder), options.ready_s)
                try:
                    _try(shape, steps, options)
                    if shape == "complete" and options.envoy_image:
                        Envoy(installation, client, options.envoy_image).check(table)
                    steps.uninstall()
                except CommandFailed as error:
                    table.add(shape, "went on", False, str(error))
                    _reset(installation)
    finally:
        for namespace in (installation.namespace, client.namespace):
            run(["kubectl", "delete", "namespace", namespace, "--ignore-not-found", "--timeout=300s"], timeout_s=320)
        kinds.delete(made)
    sys.stdout.write(f"\n{table.markdown()}")
    if options.results:
        options.results.write_text(table.markdown())
    return 1 if table.missed else 0


def _prepare(installation: Installation, client: Client, folder: Path) -> None:
    run(["kubectl", "create", "namespace", installation.namespace])
    label = ["kubectl", "label", "namespace", installation.namespace, "pointsman-gateway=true"]
    run(label)
    credentials.apply_logins(installation, folder / "logins")
    credentials.apply_certificate(installation)
    client.start()


def _try(shape: str, steps: Steps, options: argparse.Namespace) -> None:
    values = _values(shape)
    steps.install(shape, *values)
    if "test" not in options.skip:
        steps.test()
        steps.operator()
    if options.quick or shape == "complete":
        return

    def wanted(step: str) -> bool:
        return step not in options.skip

    if shape in ("dev", "default"):
        if wanted("configure"):
            steps.configure()
        if wanted("logins"):
            steps.reload_logins()
    if wanted("rollout"):
        steps.roll_out()
    if shape == "bundle" and options.parts:
        steps.delete(("gateway",))
    if shape == "bundle" and wanted("shape"):
        steps.change_shape("separate", (*values, "--set", "bundle.beside=true"), ENGINES)
        steps.change_shape("bundle again", (*values, "--set", "bundle.beside=true"), values)
    if shape == "default":
        steps.delete(options.parts)
        if wanted("leader"):
            steps.kill_leader()
        if wanted("drain"):
            steps.drain()
    if shape != "bundle" and wanted("scale"):
        steps.scale()


def _values(shape: str) -> tuple[str, ...]:
    if shape == "dev":
        return "--values", str(CHART / "values-dev.yaml")
    return ENGINES if shape == "default" else ("--values", str(CHART / f"values-{shape}.yaml"), *ENGINES)


def _reset(installation: Installation) -> None:
    try:
        installation.helm("uninstall", "--wait", "--ignore-not-found")
    except CommandFailed as error:
        sys.stdout.write(f"{error}\n")
    installation.kubectl("delete", "persistentvolumeclaims,pods,jobs", "--all", "--timeout=200s")


if __name__ == "__main__":
    sys.exit(main())
