"""Objects as a Kubernetes cluster has them, for its double `kube_api`."""

from collections.abc import Mapping
from typing import Any, Final

Object = dict[str, Any]

PODS: Final = ("v1", "pods")
INFERENCE_POOLS: Final = ("inference.networking.k8s.io/v1", "inferencepools")
OBJECTIVES: Final = ("llm-d.ai/v1alpha2", "inferenceobjectives")
REWRITES: Final = ("llm-d.ai/v1alpha2", "inferencemodelrewrites")
TOKEN: Final = "a-token-of-the-double"  # noqa: S105 - of no account


def pod(
    name: str,
    ip: str = "10.0.0.1",
    *,
    labels: Mapping[str, str] | None = None,
    uid: str | None = None,
    phase: str = "Running",
    ready: bool = True,
    terminating: bool = False,
    node: str = "n1",
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """A pod, `app: vllm` by default."""
    metadata: Object = {
        "name": name,
        "uid": uid or f"uid-{name}",
        "labels": {"app": "vllm"} if labels is None else dict(labels),
        "annotations": dict(annotations or {}),
    }
    if terminating:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    status = {"phase": phase, "podIP": ip, "conditions": conditions}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": status}


def inference_pool(*ports: int, labels: Mapping[str, str] | None = None) -> Object:
    """An InferencePool of the pods with these labels, at these ports; port 8000 by default."""
    return {
        "spec": {
            "selector": {"matchLabels": dict(labels or {"app": "vllm"})},
            "targetPorts": [{"number": port} for port in ports or (8000,)],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        }
    }


def kubeconfig(server: str, token: str, namespace: str) -> Object:
    """A kubeconfig with one context."""
    return {
        "current-context": "double",
        "clusters": [{"name": "double", "cluster": {"server": server}}],
        "users": [{"name": "tester", "user": {"token": token}}],
        "contexts": [{"name": "double", "context": {"cluster": "double", "user": "tester", "namespace": namespace}}],
    }


def failure(code: int, message: str) -> Object:
    """A Status, the server's error document."""
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
