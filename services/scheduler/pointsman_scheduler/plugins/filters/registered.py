"""Filters by registered facts: `label-selector`, `role`. Such facts change rarely, so the passing workers are computed
once for each change of the fleet."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from pointsman_plugins.plugin import Params, ParamsT_co
from pointsman_plugins.scheduling.arrays import Bools
from pointsman_plugins.scheduling.candidates import Candidates
from pointsman_plugins.scheduling.points import Filter, Removal
from pointsman_plugins.scheduling.request import ScheduleRequest
from pointsman_plugins.scheduling.worker import ROLES, Worker


class _Registered(Filter[ParamsT_co]):
    """Keeps the workers that `admits` accepts."""

    def setup(self) -> None:
        self._epoch = -1
        self._keep: Bools | None = None
        """None while every worker passes."""

    @abstractmethod
    def admits(self, worker: Worker) -> bool: ...

    @abstractmethod
    def why(self, worker: Worker) -> str: ...

    def filter(self, request: ScheduleRequest, candidates: Candidates) -> Removal | None:
        fleet = candidates.fleet
        if self._epoch != fleet.epoch:
            keep = np.array([self.admits(worker) for worker in fleet.workers], dtype=np.bool_)
            self._keep = None if keep.all() else keep
            self._epoch = fleet.epoch
        if self._keep is None:
            return None
        return Removal(self._keep if candidates.rows is None else self._keep[candidates.rows], self.why)


class RoleParams(Params):
    role: Literal["prefill", "decode", "encode"]
    """The worker's role."""


class Role(_Registered[RoleParams]):
    """Keeps the workers with one role. `both` does prefill and decode; hyphens join roles."""

    type_name = "role"

    def setup(self) -> None:
        super().setup()
        self._bit = ROLES[self.params.role]

    def admits(self, worker: Worker) -> bool:
        return bool(worker.roles & self._bit)

    def why(self, worker: Worker) -> str:
        return f"its role is {worker.registration.role!r}, not {self.params.role}"


class Expression(Params):
    """One requirement on a label, as in a Kubernetes label selector."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: frozenset[str] = frozenset()

    @model_validator(mode="after")
    def _values_fit_the_operator(self) -> "Expression":
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError("`values` belongs to In and NotIn, and only to them")
        return self

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet it."""
        if self.operator == "Exists":
            return self.key in labels
        if self.operator == "DoesNotExist":
            return self.key not in labels
        return (labels.get(self.key) in self.values) == (self.operator == "In")


class LabelSelectorParams(Params):
    match_labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that a worker must have with these values."""
    match_expressions: tuple[Expression, ...] = ()
    """Requirements as in Kubernetes: `key`, `operator` (In, NotIn, Exists, DoesNotExist), `values`."""

    @model_validator(mode="after")
    def _asks_for_something(self) -> "LabelSelectorParams":
        if not self.match_labels and not self.match_expressions:
            raise ValueError("give `match_labels` or `match_expressions`")
        return self


class LabelSelector(_Registered[LabelSelectorParams]):
    """Keeps the workers whose labels meet every requirement."""

    type_name = "label-selector"

    def setup(self) -> None:
        super().setup()
        self._expressions = (
            *(Expression(key=k, operator="In", values=frozenset((v,))) for k, v in self.params.match_labels.items()),
            *self.params.match_expressions,
        )

    def admits(self, worker: Worker) -> bool:
        return all(expression.holds(worker.registration.labels) for expression in self._expressions)

    def why(self, worker: Worker) -> str:
        failing = next(e for e in self._expressions if not e.holds(worker.registration.labels))
        have = worker.registration.labels.get(failing.key)
        shown = "has no such label" if have is None else f"has {have!r}"
        values = f" {', '.join(sorted(failing.values))}" if failing.values else ""
        return f"label {failing.key!r} {failing.operator}{values}: {shown}"
