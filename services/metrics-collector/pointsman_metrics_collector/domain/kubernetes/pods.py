"""From pods to engines."""

from collections.abc import Iterable, Mapping
from typing import Final

from pointsman_core.config import Kubernetes, Pool
from pointsman_engines.report import ReportedWorker
from pointsman_metrics_collector.domain.engines import Key, ScrapedEngine, base_models, kind
from pointsman_metrics_collector.domain.kubernetes.objects import Pod

HOSTNAME: Final = "kubernetes.io/hostname"
"""The label that a worker gets with the name of its pod's node."""


ACTIVE_PORTS: Final = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations with the ports of a pod that serve, separated by commas; the first that is there counts
(llm-d-router 0.10)."""


def pod_engines(
    pool_name: str, pool: Pool, where: Kubernetes, ports: tuple[int, ...], pods: Mapping[str, Pod], known: set[str]
) -> dict[Key, ScrapedEngine]:
    """An engine for each port of each pod that takes requests, or did.

    `known` are uids of pods that were ready before; it is updated. A pod that stops being ready, or terminates, drains:
    its open requests continue, and the knowledge of its cache stays for its return. Those of a pod that terminates move
    when four fifths of its grace period have passed. A pod that was never ready is
    skipped: its engine doesn't listen yet.
    """
    known &= {pod.metadata.uid for pod in pods.values()}
    known |= {pod.metadata.uid for pod in pods.values() if pod.is_ready and not pod.is_terminating}
    return {
        (pool_name, engine.worker.worker): engine
        for pod in pods.values()
        if pod.is_running and pod.metadata.uid in known
        for engine in _engines(pool_name, pool, where, ports, pod)
    }


def _engines(
    pool_name: str, pool: Pool, where: Kubernetes, ports: tuple[int, ...], pod: Pod
) -> Iterable[ScrapedEngine]:
    address = pod.status.pod_ip
    host = f"[{address}]" if ":" in address else address
    labels = dict(pod.metadata.labels)
    if pod.spec.node_name:
        labels.setdefault(HOSTNAME, pod.spec.node_name)
    for port in _active(pod, ports):
        yield ScrapedEngine(
            worker=ReportedWorker(
                pool=pool_name,
                worker=pod.metadata.name if len(ports) == 1 else f"{pod.metadata.name}:{port}",
                url=f"{where.scheme}://{host}:{port}",
                role=labels.get(where.role_label) or "both",
                labels=labels,
                models=base_models(pool),
            ),
            engine=kind(where.engine),
            metrics_url=None if where.metrics_port is None else f"http://{host}:{where.metrics_port}/metrics",
            health=where.health,
            tls=pool.tls,
            draining=pod.is_terminating or not pod.is_ready,
            moves_at=pod.moves_at,
        )


def _active(pod: Pod, ports: tuple[int, ...]) -> tuple[int, ...]:
    """The ports that the pod lists as active; all when it has no such list."""
    annotations = pod.metadata.annotations
    said = next((annotations[name] for name in ACTIVE_PORTS if name in annotations), None)
    if said is None:
        return ports
    numbers = {part.strip() for part in said.split(",")}
    return tuple(port for port in ports if str(port) in numbers)
