"""Requests in the forms of coding agents, written by hand from their public sources and from public captures.

Claude Code: anthropics/claude-code #21612, router-for-me/CLIProxyAPI #2540. Codex CLI: openai/codex (`codex-rs/core`,
`codex-rs/codex-api`).
"""

from typing import Any, Final, NamedTuple

SESSION: Final = "01a08920-82be-78c3-8dc9-2eca6f7f9655"
_CACHED: Final = {"cache_control": {"type": "ephemeral"}}


class AgentForm(NamedTuple):
    """One request."""

    path: str
    """With its query."""
    headers: dict[str, str]
    """Without the credential."""
    body: dict[str, Any]


def claude_code(model: str) -> AgentForm:
    """A turn of Claude Code behind a call of a tool, as its SDK sends it."""
    headers = {
        "accept": "application/json",
        "anthropic-beta": "claude-code-20250219,oauth-2025-04-20,interleaved-thinking-2025-05-14,"
        "context-management-2025-06-27,prompt-caching-scope-2026-01-05,effort-2025-11-24",
        "anthropic-dangerous-direct-browser-access": "true",
        "anthropic-version": "2023-06-01",
        "content-type": "application/json",
        "user-agent": "claude-cli/2.1.92 (external, cli)",
        "x-app": "cli",
        "x-claude-code-session-id": SESSION,
        "x-client-request-id": "6f0c0b0e-4f0d-4a59-8f53-0f3b0f1c2d3e",
        "x-stainless-arch": "x64",
        "x-stainless-helper-method": "stream",
        "x-stainless-lang": "js",
        "x-stainless-os": "Linux",
        "x-stainless-package-version": "0.80.0",
        "x-stainless-retry-count": "0",
        "x-stainless-runtime": "node",
        "x-stainless-timeout": "600",
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
        "required": ["command"],
        "additionalProperties": False,
    }
    call = {"type": "tool_use", "id": "toolu_01A2b3", "name": "Bash", "input": {"command": "ls"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_01A2b3",
        "content": "README.md",
        "is_error": False,
        **_CACHED,
    }
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>\nToday is a Saturday.\n</system-reminder>"},
                    {"type": "text", "text": "Which files are here?", **_CACHED},
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}, call]},
            {"role": "user", "content": [result]},
        ],
        "system": [
            {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **_CACHED},
            {"type": "text", "text": "You are an interactive agent.", **_CACHED},
        ],
        "tools": [{"name": "Bash", "description": "Runs a command.", "input_schema": schema}],
        "metadata": {"user_id": f'{{"device_id":"d-1","account_uuid":"","session_id":"{SESSION}"}}'},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
    }
    return AgentForm("/v1/messages?beta=true", headers, body)


def codex(model: str) -> AgentForm:
    """A turn of Codex CLI behind calls of tools."""
    headers = {
        "accept": "text/event-stream",
        "content-type": "application/json",
        "originator": "codex_cli_rs",
        "session-id": SESSION,
        "thread-id": SESSION,
        "user-agent": "codex_cli_rs/0.125.0 (Debian 12.0.0; x86_64) xterm-256color",
        "version": "0.125.0",
        "x-client-request-id": SESSION,
        "x-codex-turn-metadata": '{"turn_id":"t-1"}',
        "x-codex-window-id": f"{SESSION}:0",
    }
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}},
        "required": ["command"],
        "additionalProperties": False,
    }
    body: dict[str, Any] = {
        "model": model,
        "instructions": "You are Codex, a coding agent.",
        "input": [
            _said("developer", "<permissions instructions>read-only</permissions instructions>"),
            _said("user", "Which files are here?"),
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "Z0FBQUFB"},
            {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "README.md"},
        ],
        "tools": [
            {
                "type": "function", "name": "shell", "description": "Runs a command.", "strict": False,
                "parameters": parameters,
            },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": SESSION,
        "client_metadata": {"x-codex-installation-id": "i-1"},
    }  # fmt: skip
    return AgentForm("/v1/responses", headers, body)


def _said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
