"""Entries of `preprocessing`."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator

from pointsman_contracts.services import OnError
from pointsman_core.config.section import PluginUse, Section
from pointsman_core.units import PositiveDuration

Switch = Literal["enforce", "shadow", "off"]


def switched_off(value: object) -> object:
    """YAML reads `off` as false."""
    return "off" if value is False else value


ANSWER_BLOCKS: Final = "answer-blocks"
"""Type of the response processor that names the blocks of answers."""


class Processors(Section):
    """Plugins that run inside the gateway's services, in their order, and cost no message: see docs/processors.md."""

    before_model: tuple[PluginUse, ...] = ()
    """Request processors that run once the profile is chosen, before a model-selector."""
    after_model: tuple[PluginUse, ...] = ()
    """Request processors that run once the model is chosen, or named by the request."""
    response: tuple[PluginUse, ...] = ()
    """Response processors: they see the head, every segment and the end of the answer as it comes from the engine."""


_IDENTIFYING: Final = ("anonymous", "identity-headers")


class ProcessorUse(PluginUse):
    """A request processor, and how much it counts; the rest are its parameters."""

    mode: Annotated[Switch, BeforeValidator(switched_off)] = "enforce"
    """`enforce`: its decisions apply. `shadow`: its decisions are only reported. `off`: it doesn't run."""
    timeout: PositiveDuration | None = None
    """Longest time for which it may wait on a service; then it has failed. Default: until the request's deadline."""
    on_error: OnError = "deny"
    """When it fails. `deny`: reject the request. `allow`: skip it. `degrade`: fall back to the part that it can do
    alone; a processor with no fallback is skipped, as with `allow`."""


def identifies(use: ProcessorUse) -> bool:
    """Whether the processor authenticates senders in enforce mode. Names of such types end in `-auth`."""
    return use.mode == "enforce" and (use.use.endswith("-auth") or use.use in _IDENTIFYING)
