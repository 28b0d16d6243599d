"""`tool-count`: tells later stages how many tools a request offers, and refuses too many."""

from pydantic import Field

from pointsman_plugins import Key, Params, Refusal
from pointsman_plugins.preprocessing import Incoming, RequestProcessor

TOOL_COUNT: Key[int] = Key("tool_count", int)


class ToolCountParams(Params):
    most: int | None = Field(default=None, ge=0)
    """More are refused; None takes any number."""


class ToolCount(RequestProcessor[ToolCountParams]):
    """Produces the attribute `tool_count`."""

    type_name = "tool-count"
    produces = (TOOL_COUNT,)

    def process(self, incoming: Incoming) -> None:
        tools = incoming.field("tools")
        count = len(tools) if isinstance(tools, list) else 0
        if self.params.most is not None and count > self.params.most:
            raise Refusal(400, f"{count} tools are too many; offer {self.params.most} at most.", param="tools")
        incoming.write(TOOL_COUNT, count)
