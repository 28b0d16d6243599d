"""Saturation by stage: a pool is as full as the fuller of its prefill and its decode workers."""

from collections.abc import Sequence

import numpy as np

from pointsman_plugins.scheduling.arrays import Bools, Floats
from pointsman_plugins.scheduling.fleet import Fleet
from pointsman_plugins.scheduling.worker import DECODE, PREFILL


class WorkerRoles:
    """Which workers run which stage, kept until the fleet changes. A worker that runs both counts in both; one that
    runs neither (encode) counts in none."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._epoch = -1
        self._masks: tuple[Bools, ...] = ()

    def of(self, fleet: Fleet) -> tuple[Bools, ...]:
        """One mask for each stage that at least one worker runs, over the fleet's rows; a single mask for stages run by
        the same workers."""
        if self._fleet is not fleet or self._epoch != fleet.epoch:
            roles = np.array([worker.roles for worker in fleet.workers], dtype=np.int64)
            prefill, decode = (roles & PREFILL) != 0, (roles & DECODE) != 0
            masks = [prefill] if np.array_equal(prefill, decode) else [prefill, decode]
            self._masks = tuple(mask for mask in masks if mask.any())
            self._fleet, self._epoch = fleet, fleet.epoch
        return self._masks


def fullest_of_few(values: Sequence[float | None], stages: tuple[Bools, ...]) -> float:
    """As `fullest`, of a few workers; None for a worker that doesn't count."""
    saturation = 0.0
    for stage in stages:
        chosen = [value for value, does in zip(values, stage.tolist(), strict=True) if does and value is not None]
        if chosen:
            saturation = max(saturation, sum(chosen) / len(chosen))
    return saturation


def fullest(values: Floats, counted: Bools, stages: tuple[Bools, ...]) -> float:
    """The greatest of the stages' means over the workers that count; 0 where none does."""
    saturation = 0.0
    for stage in stages:
        chosen = values[stage & counted]
        if len(chosen):
            saturation = max(saturation, float(chosen.mean()))
    return saturation
