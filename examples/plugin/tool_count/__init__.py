"""`tool-count`: tells later stages how many tools a request offers, and refuses too many."""

from collections.abc import Mapping
from typing import cast

from pydantic import Field

from pointsman_core.plugins import Key, Params, Plugin
from pointsman_core.refusal import Refusal
from pointsman_preprocessor.domain.processing import Incoming, RequestProcessor

TOOL_COUNT: Key[int] = Key("tool_count", int)


class ToolCountParams(Params):
    most: int | None = Field(default=None, ge=0)
    """More are refused; None takes any number."""


class ToolCount(RequestProcessor):
    """Produces the attribute `tool_count`."""

    type_name = "tool-count"
    params_type = ToolCountParams
    produces = (TOOL_COUNT,)

    def __init__(self, name: str, params: Params, others: Mapping[str, Plugin]) -> None:
        super().__init__(name, params, others)
        self._most = cast("ToolCountParams", params).most

    def process(self, incoming: Incoming) -> None:
        tools = incoming.field("tools")
        count = len(tools) if isinstance(tools, list) else 0
        if self._most is not None and count > self._most:
            raise Refusal(400, f"{count} tools are too many; offer {self._most} at most.", param="tools")
        incoming.write(TOOL_COUNT, count)
