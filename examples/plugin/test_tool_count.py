"""The plugin's test: it needs pointsman-plugins and no service."""

from tool_count import TOOL_COUNT, ToolCount

from pointsman_plugins.bench import incoming, make


def test_tools_are_counted() -> None:
    request = incoming({"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": []})
    make(ToolCount, most=2).process(request)
    assert request.read(TOOL_COUNT) == 0
