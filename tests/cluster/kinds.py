"""Kinds that the values `complete` use and a cluster may lack: stand-ins without a schema, for the time of the test."""

import json
from typing import Final

from tests.cluster.kube import CommandFailed, run

KINDS: Final = (
    ("gateway.networking.k8s.io", "v1", "Gateway", "gateways"),
    ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
    ("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools"),
    ("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
)


def apply_missing() -> list[str]:
    """Define those that the cluster lacks; returns their names."""
    made: list[str] = []
    for group, version, kind, plural in KINDS:
        name = f"{plural}.{group}"
        try:
            run(["kubectl", "get", "customresourcedefinition", name])
        except CommandFailed:
            schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            versions = [{"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]
            definition = {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {
                    "name": name,
                    # The API server asks it of definitions under this suffix.
                    "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in of a test"},
                },
                "spec": {
                    "group": group,
                    "scope": "Namespaced",
                    "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                    "versions": versions,
                },
            }
            run(["kubectl", "apply", "--filename", "-"], json.dumps(definition))
            run(["kubectl", "wait", f"customresourcedefinition/{name}", "--for=condition=Established", "--timeout=60s"])
            made.append(name)
    return made


def delete(names: list[str]) -> None:
    """Remove the stand-ins."""
    for name in names:
        run(["kubectl", "delete", "customresourcedefinition", name, "--ignore-not-found"])
