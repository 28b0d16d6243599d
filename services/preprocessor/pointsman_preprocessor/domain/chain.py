"""Runs processors in order, each as its entry configures it."""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from pydantic import JsonValue

from pointsman_contracts.journey import BodyEdit, HeaderEdit
from pointsman_core.config import ProcessorUse
from pointsman_core.refusal import Refusal
from pointsman_plugins.preprocessing import Incoming, ProcessorFailure, ProcessorVerdict, RequestProcessor, Unavailable

Within = Callable[[Awaitable[None], float], Awaitable[None]]
"""Waits at most this many seconds; then raises TimeoutError."""

_RETRY_AFTER_S: Final = 1.0


class Step(NamedTuple):
    """A processor and its mode."""

    processor: RequestProcessor
    shadow: bool = False
    on_error: str = "deny"
    timeout_s: float | None = None

    @classmethod
    def from_entry(cls, processor: RequestProcessor, use: ProcessorUse) -> "Step":
        """As its entry says."""
        return cls(processor, use.mode == "shadow", use.on_error, use.timeout)

    @property
    def undoable(self) -> bool:
        """Whether its changes may have to be undone."""
        return self.shadow or self.on_error != "deny"


class _Compiled(NamedTuple):
    """A step, and the parts of it that every request needs."""

    step: Step
    process: Callable[[Incoming], Awaitable[None] | None]
    undoable: bool
    reports: bool
    name: str


class _Before:
    """The request as it was before a step."""

    __slots__ = ("_answer_headers", "_attributes", "_body_edits", "_header_edits")

    def __init__(self, incoming: Incoming) -> None:
        self._attributes: dict[str, JsonValue] = incoming.attributes
        self._header_edits: dict[str, HeaderEdit] = incoming.header_edits
        self._body_edits: dict[str, BodyEdit] = incoming.body_edits
        self._answer_headers: dict[str, HeaderEdit] = incoming.answer_headers
        incoming.attributes = dict(incoming.attributes)
        incoming.header_edits = dict(incoming.header_edits)
        incoming.body_edits = dict(incoming.body_edits)
        incoming.answer_headers = dict(incoming.answer_headers)

    def restore_incoming(self, incoming: Incoming) -> dict[str, JsonValue]:
        """Undo the changes since; returns the attributes that were written."""
        written = {
            name: value
            for name, value in incoming.attributes.items()
            if name not in self._attributes or self._attributes[name] is not value
        }
        incoming.attributes = self._attributes
        incoming.header_edits = self._header_edits
        incoming.body_edits = self._body_edits
        incoming.answer_headers = self._answer_headers
        return written


class Chain:
    """Runs the steps one after the other."""

    def __init__(
        self,
        steps: Sequence[Step],
        within: Within | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`within` is None: waits have no bound."""
        self.steps: Final = tuple(steps)
        self._compiled: Final = tuple(
            _Compiled(step, step.processor.process, step.undoable, step.processor.reports, step.processor.name)
            for step in self.steps
        )
        self._within: Final = within
        self._clock: Final = clock
        read = (name for step in steps if not step.shadow for name in step.processor.credentials)
        self._credentials: Final = tuple(dict.fromkeys(read))
        self._declared: Final = frozenset(key.name for step in steps for key in step.processor.produces)

    def run(self, incoming: Incoming) -> Awaitable[None] | None:
        """Run all steps; returns the rest as an awaitable when one of them waits. Raises Refusal, and the error of a
        processor that may not fail."""
        incoming.credentials = self._credentials
        incoming.declared = self._declared
        return self._run(incoming, iter(self._compiled)) if self._compiled else None

    def _run(self, incoming: Incoming, left: Iterator[_Compiled]) -> Awaitable[None] | None:
        clock, tell = self._clock, incoming.verdicts.append
        began = clock()
        for step, process, undoable, reports, name in left:
            before = self._enter(step, incoming) if undoable else None
            try:
                waiting = process(incoming)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything; `on_error` decides
                self._ended(step, incoming, began, before, error)
                began = clock()
                continue
            if waiting is not None:
                return self._resume(
                    step=step, incoming=incoming, began=began, before=before, waiting=waiting, left=left
                )
            # A step begins where the one before it ends.
            ended = clock()
            if before is not None:
                self._ended(step, incoming, began, before, None)
            elif reports or incoming.note is not None:
                tell(ProcessorVerdict(name, "passed", round((ended - began) * 1000, 3), incoming.note))
                incoming.note = None
            began = ended
        return None

    async def _resume(
        self,
        step: Step,
        incoming: Incoming,
        began: float,
        before: _Before | None,
        waiting: Awaitable[None],
        left: Iterator[_Compiled],
    ) -> None:
        failed: Exception | None = None
        try:
            if step.timeout_s is None or self._within is None:
                await waiting
            else:
                await self._within(waiting, step.timeout_s)
        except Exception as error:  # noqa: BLE001 - as in `_run`
            failed = error
        self._ended(step, incoming, began, before, failed)
        rest = self._run(incoming, left)
        if rest is not None:
            await rest

    def _enter(self, step: Step, incoming: Incoming) -> _Before:
        before = _Before(incoming)
        if step.shadow:
            incoming.attributes |= incoming.shadow
        return before

    def _ended(
        self, step: Step, incoming: Incoming, began: float, before: _Before | None, error: Exception | None
    ) -> None:
        note, incoming.note = incoming.note, None
        took_ms = round((self._clock() - began) * 1000, 3)
        name = step.processor.name

        def told(outcome: str, why: str | None) -> None:
            incoming.verdicts.append(ProcessorVerdict(name, outcome, took_ms, why))

        if isinstance(error, Refusal):
            note = f"{error.status} {error.code or error.type}" + (f": {note}" if note else "")
        if step.shadow and before is not None:
            incoming.shadow = incoming.shadow | before.restore_incoming(incoming)
            if error is None:
                told("shadow_passed", note)
            elif isinstance(error, Refusal):
                told("shadow_rejected", note)
            else:
                incoming.failures.append(ProcessorFailure(name, error))
                told("skipped", _problem(error))
        elif error is None:
            if note is not None or step.processor.reports:
                told("passed", note)
        elif isinstance(error, Refusal):
            told("rejected", note)
            raise error
        elif before is None:
            told("rejected", _problem(error))
            raise _denied(name, error)
        else:
            before.restore_incoming(incoming)
            incoming.failures.append(ProcessorFailure(name, error))
            incoming.degraded.append(f"{name} {_problem(error)}")
            try:
                lesser = step.on_error == "degrade" and step.processor.degrade(incoming)
            except Refusal as refusal:
                told("rejected", f"{refusal.status} {refusal.told_code}, degraded: {_problem(error)}")
                raise
            note, incoming.note = incoming.note, None
            told("degraded" if lesser else "skipped", "; ".join(filter(None, (_problem(error), note))))


def _problem(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "was too slow"
    return f"failed: {error}" if isinstance(error, Unavailable) else "failed"


def _denied(name: str, error: Exception) -> Exception:
    """The rejection when a required processor fails. The runtime answers and logs unforeseen errors."""
    if isinstance(error, TimeoutError):
        return Refusal(
            504, f"{name} did not finish in time; try again shortly.", type="server_error", code="stage_timeout"
        )
    if isinstance(error, Unavailable):
        return Refusal(
            503,
            f"{name} can't check requests at the moment; try again shortly.",
            type="server_error",
            code="policy_unavailable",
            retry_after_s=_RETRY_AFTER_S,
        )
    return error
