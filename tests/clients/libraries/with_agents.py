"""Requests in the forms of coding agents: Claude Code and Codex CLI."""

import json
from typing import Any

import httpx

from libraries.calls import MODEL, Calls
from pointsman_testing.agent_forms import AgentForm, claude_code, codex

CALLS = Calls()


def events(door: str, form: AgentForm) -> list[dict[str, Any]]:
    """The events of the answer's stream."""
    headers = {**form.headers, "authorization": "Bearer unused"}
    answer = httpx.post(f"{door}{form.path}", json=form.body, headers=headers, timeout=60)
    answer.raise_for_status()
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


@CALLS.add("Claude Code: a turn behind a tool's result", "/v1/messages")
def claude(door: str) -> None:
    found = events(door, claude_code(MODEL))
    assert found[0]["type"] == "message_start"
    assert found[0]["message"]["model"] == MODEL
    assert "".join(each["delta"].get("text", "") for each in found if each["type"] == "content_block_delta").strip()
    assert found[-1]["type"] == "message_stop"


@CALLS.add("Codex CLI: a turn behind a tool's result", "/v1/responses")
def codex_cli(door: str) -> None:
    found = events(door, codex(MODEL))
    assert found[0]["type"] == "response.created"
    assert "".join(each["delta"] for each in found if each["type"] == "response.output_text.delta").strip()
    assert found[-1]["type"] == "response.completed"
    assert found[-1]["response"]["model"] == MODEL
