"""Filters of what workers registered: `label-selector`, `role`. Such facts change rarely, so who passes is worked out
once for each change of the fleet."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from pointsman_core.plugins import Params, Plugin
from pointsman_scheduler.domain.arrays import Bools
from pointsman_scheduler.domain.candidates import Candidates
from pointsman_scheduler.domain.points import Filter, Removal
from pointsman_scheduler.domain.request import ScheduleRequest
from pointsman_scheduler.domain.worker import ROLES, Worker


class _Registered(Filter):
    """Keeps the workers that `admits` approves of."""

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._epoch = -1
        self._keep: Bools | None = None
        """None while everybody passes."""

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
    """The part of the work."""


class Role(_Registered):
    """Keeps the workers that do one part of the work. `both` does prefill and decode; hyphens join roles."""

    type_name: ClassVar[str] = "role"
    params_type: ClassVar[type[Params]] = RoleParams

    def __init__(self, name: str, params: RoleParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._role: Final = params.role
        self._bit: Final = ROLES[params.role]

    def admits(self, worker: Worker) -> bool:
        return bool(worker.roles & self._bit)

    def why(self, worker: Worker) -> str:
        return f"its role is {worker.registration.role!r}, not {self._role}"


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


class LabelSelector(_Registered):
    """Keeps the workers whose labels meet every requirement."""

    type_name: ClassVar[str] = "label-selector"
    params_type: ClassVar[type[Params]] = LabelSelectorParams

    def __init__(self, name: str, params: LabelSelectorParams, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._expressions: Final = (
            *(Expression(key=k, operator="In", values=frozenset((v,))) for k, v in params.match_labels.items()),
            *params.match_expressions,
        )

    def admits(self, worker: Worker) -> bool:
        return all(expression.holds(worker.registration.labels) for expression in self._expressions)

    def why(self, worker: Worker) -> str:
        failing = next(e for e in self._expressions if not e.holds(worker.registration.labels))
        have = worker.registration.labels.get(failing.key)
        shown = "has no such label" if have is None else f"has {have!r}"
        values = f" {', '.join(sorted(failing.values))}" if failing.values else ""
        return f"label {failing.key!r} {failing.operator}{values}: {shown}"
