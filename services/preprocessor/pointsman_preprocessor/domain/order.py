"""The required order of processors. Any other order is the operator's choice."""

from collections.abc import Sequence

from pointsman_core.config import Config, ProcessorUse, identifies
from pointsman_core.plugins import PluginError
from pointsman_plugins.preprocessing import IDENTITY, RequestProcessor
from pointsman_plugins.registry import check_dataflow
from pointsman_preprocessor.domain.chain import Step


def check_order(uses: Sequence[ProcessorUse], processors: Sequence[RequestProcessor], config: Config) -> None:
    """Raise PluginError that names the misplaced processor and the rule. `uses` and `processors` belong together, and
    include disabled ones."""
    _check_identity(uses, processors)
    running = [(use, processor) for use, processor in zip(uses, processors, strict=True) if use.mode != "off"]
    # A processor in shadow sees the output of others in shadow; an enforced one doesn't.
    check_dataflow([processor for use, processor in running if use.mode == "enforce"])
    check_dataflow([processor for _, processor in running])
    for position, (use, processor) in enumerate(zip(uses, processors, strict=True)):
        if not processor.authenticates or use.mode == "off":
            continue
        if not identifies(use.model_copy(update={"mode": "enforce"})):
            raise PluginError(
                f"{processor.name!r} authenticates: its type's name must end in `-auth`, by which edges know it",
                (position, "use"),
            )
        if use.on_error == "allow":
            raise PluginError(
                f"{processor.name!r} authenticates: `on_error: allow` would admit every sender while it fails",
                (position, "on_error"),
            )
        if processor.name in config.edge.static_skips:
            raise PluginError(
                f"{processor.name!r} authenticates: with it in `edge.static_skips` every sender would be "
                "admitted while the bus is gone; remove it there",
                (position,),
            )


def admission_position(steps: Sequence[Step]) -> int | None:
    """Where a request must have an identity: behind the last processor that authenticates; None without any."""
    found = [position for position, step in enumerate(steps) if step.processor.authenticates]
    return found[-1] + 1 if found else None


def _check_identity(uses: Sequence[ProcessorUse], processors: Sequence[RequestProcessor]) -> None:
    """A processor that reads the identity must come after every one that may produce it."""
    finders = [
        (position, use, processor.name)
        for position, (use, processor) in enumerate(zip(uses, processors, strict=True))
        if any(key.name == IDENTITY.name for key in processor.produces)
    ]
    for position, (use, processor) in enumerate(zip(uses, processors, strict=True)):
        if use.mode == "off" or not any(key.name == IDENTITY.name for key in processor.consumes):
            continue
        running = [found for found in finders if found[1].mode != "off"]
        behind = [name for place, _, name in running if place > position]
        if behind:
            raise PluginError(
                f"{processor.name!r} reads the identity, which {behind[-1]!r} finds later; put "
                f"{processor.name!r} after {behind[-1]!r}",
                (position,),
            )
        if use.mode == "enforce" and not any(found[1].mode == "enforce" for found in running):
            idle = [f"{name!r} is {'off' if found.mode == 'off' else 'in shadow'}" for _, found, name in finders]
            hint = f"; {' and '.join(idle)}" if idle else "; put e.g. `api-key-auth` or `jwt-auth` before it"
            raise PluginError(
                f"{processor.name!r} reads the identity, which no enforced processor finds{hint}",
                (position,),
            )
