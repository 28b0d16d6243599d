"""The watched kinds of objects: their paths in the API, and their models."""

from collections.abc import Mapping
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from pointsman_metrics_collector.domain.kubernetes.objects import (
    POOL_GROUP,
    InferenceModelRewrite,
    InferenceObjective,
    InferencePool,
    KubeObject,
    Pod,
)

T = TypeVar("T", bound=KubeObject)
T_co = TypeVar("T_co", bound=KubeObject, covariant=True)

_POOLS: Final = f"{POOL_GROUP}/v1"
RULE_GROUPS: Final = ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2")
"""API groups of objectives and rewrites: the new one, then the old one. An object in both is taken from the first."""


class Collection(NamedTuple, Generic[T_co]):
    """Objects of one kind in one namespace."""

    kind: type[T_co]
    api: str
    """`v1` for core objects, else group and version."""
    plural: str
    namespace: str
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that the objects have."""
    name: str = ""
    """Only the object of this name."""
    optional: bool = False
    """Whether a cluster may lack this kind."""

    @property
    def path(self) -> str:
        """Its path in the API."""
        root = "api" if "/" not in self.api else "apis"
        return f"/{root}/{self.api}/namespaces/{self.namespace}/{self.plural}"

    @property
    def selection(self) -> dict[str, str]:
        """Parameters of the query that choose the objects."""
        chosen: dict[str, str] = {}
        if self.labels:
            chosen["labelSelector"] = ",".join(f"{key}={value}" for key, value in self.labels)
        if self.name:
            chosen["fieldSelector"] = f"metadata.name={self.name}"
        return chosen

    def __str__(self) -> str:
        group, slash, _ = self.api.partition("/")
        kind = f"{self.plural}.{group}" if slash else self.plural
        what = f"{kind} {self.name}" if self.name else kind
        return f"{what} in namespace {self.namespace}"


class Seen(NamedTuple, Generic[T_co]):
    """The known state of a collection."""

    objects: Mapping[str, T_co] | None = None
    """Objects by name; None before the first listing."""
    problem: str = ""
    """Why that may be old; empty when it isn't."""


class Look(Protocol):
    """The known state of a collection of any kind."""

    def __call__(self, collection: Collection[T], /) -> Seen[T]:
        """Nothing, for a collection that isn't watched yet."""
        ...


def inference_pool(namespace: str, name: str) -> Collection[InferencePool]:
    """One InferencePool. By its name, so that a role may be bound to it alone."""
    return Collection(InferencePool, _POOLS, "inferencepools", namespace, name=name)


def pods(namespace: str, labels: dict[str, str]) -> Collection[Pod]:
    return Collection(Pod, "v1", "pods", namespace, labels=tuple(sorted(labels.items())))


def objectives(namespace: str) -> tuple[Collection[InferenceObjective], ...]:
    """InferenceObjectives, the group that counts first."""
    return tuple(
        Collection(InferenceObjective, api, "inferenceobjectives", namespace, optional=True) for api in RULE_GROUPS
    )


def rewrites(namespace: str) -> tuple[Collection[InferenceModelRewrite], ...]:
    """InferenceModelRewrites, the group that counts first."""
    return tuple(
        Collection(InferenceModelRewrite, api, "inferencemodelrewrites", namespace, optional=True)
        for api in RULE_GROUPS
    )
