"""Objects of the Kubernetes API with the fields that are used here; other fields are ignored.

Pods: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/. InferencePool v1 and
InferenceObjective and InferenceModelRewrite v1alpha2:
https://gateway-api-inference-extension.sigs.k8s.io/reference/spec/ and https://github.com/llm-d/llm-d-router 0.10.
"""

from datetime import datetime
from typing import Final

from pydantic import AliasChoices, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

POOL_GROUP: Final = "inference.networking.k8s.io"
"""API group of InferencePools."""
_FOR_MOVES: Final = 0.2


class _Camel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Metadata(_Camel):
    """Metadata of every object and every list."""

    name: str = ""
    uid: str = ""
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    annotations: dict[str, str] = Field(default_factory=dict[str, str])
    resource_version: str = ""
    """Opaque; only ever given back."""
    creation_timestamp: str = ""
    """RFC 3339 in UTC, so that texts sort as times do."""
    deletion_timestamp: str | None = None
    """Set while the object is being deleted: for a pod, the moment at which it is killed."""
    deletion_grace_period_seconds: float | None = None
    continue_: str = Field(default="", alias="continue")
    """The token for the next page of a list."""


class KubeObject(_Camel):
    """Any object."""

    metadata: Metadata = Metadata()

    @property
    def is_terminating(self) -> bool:
        """Whether it is being deleted; a finalizer may keep it for long."""
        return self.metadata.deletion_timestamp is not None


class PodSpec(_Camel):
    """Where a pod runs."""

    node_name: str = ""


class PodCondition(_Camel):
    """One of a pod's conditions, e.g. `Ready`."""

    type: str
    status: str


class PodStatus(_Camel):
    """The state of a pod."""

    phase: str = ""
    pod_ip: str = Field(default="", alias="podIP")
    conditions: tuple[PodCondition, ...] = ()


class Pod(KubeObject):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_running(self) -> bool:
        """Whether it has an address where a process may listen. A finished or evicted pod keeps its address in its
        status even when another pod has it."""
        return self.status.phase == "Running" and bool(self.status.pod_ip)

    @property
    def moves_at(self) -> float | None:
        """When the open requests of a pod that terminates should move elsewhere, in unix seconds: the last fifth of its
        grace period is for that. None for any other pod, and where the API server gave no readable time."""
        killed_at, grace_s = self.metadata.deletion_timestamp, self.metadata.deletion_grace_period_seconds
        if killed_at is None or grace_s is None:
            return None
        try:
            return datetime.fromisoformat(killed_at).timestamp() - grace_s * _FOR_MOVES
        except ValueError:
            return None

    @property
    def is_ready(self) -> bool:
        """Whether it runs and its readiness probes pass."""
        return self.is_running and any(
            each.type == "Ready" and each.status == "True" for each in self.status.conditions
        )


class PoolSelector(_Camel):
    """Which pods."""

    match_labels: dict[str, str] = Field(default_factory=dict[str, str])


class TargetPort(_Camel):
    """A port at which each pod serves."""

    number: int


class InferencePoolSpec(_Camel):
    """Pods and ports."""

    selector: PoolSelector = PoolSelector()
    target_ports: tuple[TargetPort, ...] = ()


class InferencePool(KubeObject):
    """`inference.networking.k8s.io/v1`."""

    spec: InferencePoolSpec = InferencePoolSpec()


class PoolRef(_Camel):
    """The pool that an object is about, in the same namespace."""

    group: str = POOL_GROUP
    kind: str = "InferencePool"
    name: str = ""

    def refers_to(self, inference_pool: str) -> bool:
        """Whether the reference is to the InferencePool of this name."""
        return (self.group, self.kind, self.name) == (POOL_GROUP, "InferencePool", inference_pool)


class InferenceObjectiveSpec(_Camel):
    """A priority; absent means 0."""

    priority: int | None = None
    pool_ref: PoolRef = PoolRef()


class InferenceObjective(KubeObject):
    """A priority under a name that requests may give in a header."""

    spec: InferenceObjectiveSpec = InferenceObjectiveSpec()


class ModelMatch(_Camel):
    """A model's name."""

    type: str = "Exact"
    value: str = ""


class RewriteMatch(_Camel):
    """The match for a request."""

    model: ModelMatch | None = None


class RewriteTarget(_Camel):
    """A model and its share."""

    model_rewrite: str
    weight: int | None = Field(default=None, ge=0)


class RewriteRule(_Camel):
    """Requests that match are served by one of the targets; no match stands for all."""

    matches: tuple[RewriteMatch, ...] = ()
    targets: tuple[RewriteTarget, ...] = Field(default=(), validation_alias=AliasChoices("targets", "split"))
    """`split` in the Gateway API inference extension before 1.3."""


class InferenceModelRewriteSpec(_Camel):
    """Rules of a pool."""

    pool_ref: PoolRef = PoolRef()
    rules: tuple[RewriteRule, ...] = ()


class InferenceModelRewrite(KubeObject):
    """Which models serve requests for which names."""

    spec: InferenceModelRewriteSpec = InferenceModelRewriteSpec()


class ErrorStatus(_Camel):
    """The API server's error document."""

    code: int = 0
    reason: str = ""
    message: str = ""
